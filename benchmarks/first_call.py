"""Sections `first-call` and `compile`: what only a new process can measure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from benchmarks import jax_worker, programs
from benchmarks.options import Options
from benchmarks.report import Goal, Section, ratio_text
from benchmarks.worker import Response
from benchmarks.worker_client import NotMeasured, start_worker

# Forced host devices pay for their threads and buffers in the first call, most at large counts.
_FIRST_CALL_DEVICES = 512
_FIRST_CALL_PROGRAMS = ("mlp", "gather")
_STAGES = ("trace_s", "lower_s", "compile_s")

Settings = dict[str, object]


def measure_first_calls(options: Options) -> Section:
    """Time the first call on 512 devices: trace, compile and run."""
    section = Section(
        f"First call on {_FIRST_CALL_DEVICES} devices",
        ["program", "variant", "first call s", "second call s", "peak MB", "/ simulated"],
    )
    for program in _FIRST_CALL_PROGRAMS:
        _add_first_call(section, program, options)
    return section


def _add_first_call(section: Section, program: str, options: Options) -> None:
    settings = {
        kind: _worker_settings(kind, program, _FIRST_CALL_DEVICES)
        for kind in ("simulated", "forced")
    }
    responses = _median_responses(settings, "first_calls", options)
    speedup = _response_ratio(responses["forced"], responses["simulated"], ("first_s",))
    title = programs.TITLES[program]
    for kind, response in responses.items():
        cells = _response_cells(response, ("first_s", "second_s", "peak_mb"))
        section.rows.append([title, kind, *cells, ratio_text(speedup) if kind == "forced" else ""])
        section.data.append({"program": program, "variant": kind, **response})
    section.goals.append(
        Goal(
            f"{title}: forced host devices / simulated, first call, {_FIRST_CALL_DEVICES} devices",
            10.0,
            speedup,
            at_most=False,
            note=_failures_text(responses),
        )
    )


def measure_compilation(options: Options) -> Section:
    """Time tracing, lowering and compiling the transformer step, against plain jit."""
    # The unsharded program is the same for every device count, so one of them is enough.
    settings = {"unsharded": _worker_settings("unsharded", "transformer", options.devices[0])}
    for n_devices in options.devices:
        name = f"simulated, {n_devices} devices"
        settings[name] = _worker_settings("simulated", "transformer", n_devices)
    responses = _median_responses(settings, "time_stages", options)
    section = Section(
        "Tracing and compiling the 24-layer step",
        ["variant", "trace s", "lower s", "compile s", "total s", "/ unsharded"],
    )
    for name, response in responses.items():
        total = response
        if "failure" not in response:
            total = {"total_s": sum(response[stage] for stage in _STAGES)}
        ratio = _response_ratio(response, responses["unsharded"], _STAGES)
        section.rows.append(
            [
                name,
                *_response_cells(response, _STAGES),
                *_response_cells(total, ("total_s",)),
                ratio_text(ratio),
            ]
        )
        section.data.append({"variant": name, **response})
        if name != "unsharded":
            goal_name = f"trace + lower + compile / unsharded, {name}"
            note = _failures_text({"unsharded": responses["unsharded"], name: response})
            section.goals.append(Goal(goal_name, 2.0, ratio, note=note))
    section.notes = ["The simulator interprets the program during lowering."]
    return section


def _worker_settings(kind: str, program: str, n_devices: int) -> Settings:
    return {"kind": kind, "program": program, "devices": n_devices}


def _median_responses(
    settings: Mapping[str, Settings], method: str, options: Options
) -> dict[str, Response]:
    """Call `method` in new processes of each variant, alternately; return median responses."""
    responses: dict[str, list[Response]] = {name: [] for name in settings}
    failures: dict[str, str] = {}
    for _ in range(options.processes):
        for name, worker_settings in settings.items():
            if name in failures:
                continue
            command = jax_worker.worker_command(**worker_settings)
            try:
                with start_worker(name, command, options.limit_s) as client:
                    responses[name].append(client.request(method))
            except NotMeasured as reason:
                failures[name] = str(reason)
    return {
        name: {"failure": failures[name]} if name in failures else _median_response(repetitions)
        for name, repetitions in responses.items()
    }


def _median_response(responses: list[Response]) -> Response:
    return {key: statistics.median(response[key] for response in responses) for key in responses[0]}


def _response_cells(response: Response, keys: tuple[str, ...]) -> list[str]:
    if "failure" in response:
        return [f"not measured: {response['failure']}", *["-"] * (len(keys) - 1)]
    return [
        f"{response[key]:,.2f}" if key.endswith("_s") else f"{response[key]:,.0f}" for key in keys
    ]


def _response_ratio(
    numerator: Response, denominator: Response, keys: tuple[str, ...]
) -> float | None:
    if "failure" in numerator or "failure" in denominator:
        return None
    return float(sum(numerator[key] for key in keys) / sum(denominator[key] for key in keys))


def _failures_text(responses: Mapping[str, Response]) -> str:
    return "; ".join(
        f"{name} {response['failure']}"
        for name, response in responses.items()
        if "failure" in response
    )
