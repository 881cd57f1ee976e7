"""What only a fresh process can tell: the first call, and tracing and compiling."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks import jax_worker, programs
from benchmarks.contender import Contender, NotMeasured, contender
from benchmarks.options import Options
from benchmarks.section import Bar, Section, times

_FIRST_CALL_DEVICES = 512
_FIRST_CALL_PROGRAMS = ("mlp", "gather")
_STAGES = ("trace_s", "lower_s", "compile_s")


def first_call(options: Options) -> Section:
    """Time the first call on 512 devices: trace, compile and run."""
    section = Section(
        f"First call on {_FIRST_CALL_DEVICES} devices",
        ["program", "contender", "first call s", "second call s", "peak MB", "/ simulated"],
    )
    for program in _FIRST_CALL_PROGRAMS:
        _add_first_call(section, program, options)
    return section


def _add_first_call(section: Section, program: str, options: Options) -> None:
    settings = {k: _settings(k, program, _FIRST_CALL_DEVICES) for k in ("simulated", "forced")}
    answers = _medians(settings, lambda one: one.ask("first"), options)
    slower = _quotient(answers["forced"], answers["simulated"], ("first_s",))
    title = programs.TITLES[program]
    for kind, answer in answers.items():
        cells = _cells(answer, ("first_s", "second_s", "peak_mb"))
        section.rows.append([title, kind, *cells, times(slower) if kind == "forced" else ""])
        section.data.append({"program": program, "contender": kind, **answer})
    what = f"{title}: forced host devices / simulated, first call, {_FIRST_CALL_DEVICES} devices"
    section.bars.append(Bar(what, 10.0, slower, at_most=False, note=_why(answers)))


def compiling(options: Options) -> Section:
    """Time tracing, lowering and compiling the transformer step, against plain jit."""
    settings = {"unsharded": _settings("unsharded", "transformer", options.devices[0])}
    for n_devices in options.devices:
        settings[f"simulated, {n_devices} devices"] = _settings(
            "simulated", "transformer", n_devices
        )
    answers = _medians(settings, lambda one: one.ask("stages"), options)
    section = Section(
        "Tracing and compiling the 24-layer step",
        ["contender", "trace s", "lower s", "compile s", "total s", "/ unsharded"],
    )
    for name, answer in answers.items():
        total = {"total_s": sum(answer[s] for s in _STAGES)} if "why_not" not in answer else answer
        against = _quotient(answer, answers["unsharded"], _STAGES)
        section.rows.append(
            [name, *_cells(answer, _STAGES), *_cells(total, ("total_s",)), times(against)]
        )
        section.data.append({"contender": name, **answer})
        if name != "unsharded":
            what = f"trace + lower + compile / unsharded, {name}"
            section.bars.append(Bar(what, 2.0, against, note=_why({name: answer})))
    section.notes = ["the simulator's own work happens while lowering"]
    return section


def _settings(kind: str, program: str, n_devices: int) -> dict[str, Any]:
    return {"kind": kind, "program": program, "devices": n_devices}


def _medians(
    settings: Mapping[str, dict[str, Any]],
    ask: Callable[[Contender], dict[str, Any]],
    options: Options,
) -> dict[str, dict[str, Any]]:
    """Ask a fresh process of each contender in turn, several times; return medians."""
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in settings}
    why_not: dict[str, str] = {}
    for _ in range(options.fresh):
        for name, setting in settings.items():
            if name in why_not:
                continue
            try:
                with contender(name, jax_worker.command(**setting), options.limit_s) as one:
                    answers[name].append(ask(one))
            except NotMeasured as reason:
                why_not[name] = str(reason)
    return {
        name: {"why_not": why_not[name]} if name in why_not else _median(each)
        for name, each in answers.items()
    }


def _median(answers: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: statistics.median(a[key] for a in answers) for key in answers[0]}


def _cells(answer: dict[str, Any], keys: tuple[str, ...]) -> list[str]:
    if "why_not" in answer:
        return [f"not measured: {answer['why_not']}", *["-"] * (len(keys) - 1)]
    return [f"{answer[key]:,.2f}" if key.endswith("_s") else f"{answer[key]:,.0f}" for key in keys]


def _quotient(above: dict[str, Any], below: dict[str, Any], keys: tuple[str, ...]) -> float | None:
    if "why_not" in above or "why_not" in below:
        return None
    return float(sum(above[key] for key in keys) / sum(below[key] for key in keys))


def _why(answers: Mapping[str, dict[str, Any]]) -> str:
    return "; ".join(f"{name} {a['why_not']}" for name, a in answers.items() if "why_not" in a)
