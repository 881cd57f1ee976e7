"""Sections `mlp` to `transformer` and `one-core`: time and memory of one step.

Each program runs unsharded, simulated, and on forced host devices.
"""

from __future__ import annotations

from typing import Any

from benchmarks import jax_worker, programs
from benchmarks.comparison import (
    Measurement,
    Variant,
    compare_variants,
    memory_ratio,
    time_ratio,
)
from benchmarks.options import Options
from benchmarks.report import Goal, Section, milliseconds_range_text, ratio_text

_COLUMNS = [
    "devices",
    "variant",
    "ms, median (min-max)",
    "peak MB",
    "simulated / this, time",
    "simulated / this, memory",
    "first call s",
]
# Only the MLP steps are compared with the unsharded program: a ring of n steps does more work.
_MLPS = ("mlp", "mlp-wide")
# At 256 devices: how many times faster than forced host devices, and the share of their memory.
# 256 is the largest count at which forced devices finish every program on 2 cores.
_SPEEDUP_AT_256 = {"mlp": 2.0, "mlp-wide": 2.0, "gather": 10.0, "ring": 10.0, "transformer": 10.0}
_MEMORY_AT_256 = 0.5


def measure_steps(name: str, options: Options) -> Section:
    """Measure program `name` at every device count, on all cores."""
    section = Section(programs.TITLES[name], _COLUMNS)
    for n_devices in options.devices:
        kinds = ("unsharded", "simulated", "forced")
        measurements = _compare(name, n_devices, options, kinds, n_cores=None)
        _add_rows(section, n_devices, measurements)
        if name in _MLPS:
            section.goals.append(_time_goal(name, n_devices, measurements, 1.3, "all cores"))
            section.goals.append(_memory_goal(name, n_devices, measurements))
        if n_devices == 256:
            section.goals += _forced_device_goals(name, measurements)
    return section


def measure_one_core(name: str, options: Options) -> Section:
    """Measure an MLP step with every variant pinned to one core."""
    section = Section(f"{programs.TITLES[name]}, one core", _COLUMNS)
    for n_devices in options.devices:
        measurements = _compare(name, n_devices, options, ("unsharded", "simulated"), n_cores=1)
        _add_rows(section, n_devices, measurements)
        section.goals.append(_time_goal(name, n_devices, measurements, 1.15, "one core"))
    return section


def _compare(
    name: str, n_devices: int, options: Options, kinds: tuple[str, ...], n_cores: int | None
) -> dict[str, Measurement]:
    settings = {"program": name, "devices": n_devices, "cores": n_cores}
    variants = {
        kind: Variant(jax_worker.worker_command(kind=kind, **settings), options.limit_s)
        for kind in kinds
    }
    return compare_variants(variants, options.rounds)


def _add_rows(section: Section, n_devices: int, measurements: dict[str, Measurement]) -> None:
    for kind, measurement in measurements.items():
        cells = _row_cells(measurement, measurements["simulated"])
        section.rows.append([str(n_devices), kind, *cells])
        section.data.append({"devices": n_devices, "variant": kind, **_as_data(measurement)})
        if measurement.failure and measurement.rounds:
            section.notes.append(
                f"{kind}, {n_devices} devices: stopped early: {measurement.failure}"
            )


def _row_cells(measurement: Measurement, simulated: Measurement) -> list[str]:
    if not measurement.rounds:
        return ["not measured: " + measurement.failure, "-", "-", "-", "-"]
    time = memory = None
    if measurement is not simulated:
        time = time_ratio(simulated, measurement)
        memory = memory_ratio(simulated, measurement)
    time_cell = ""
    if time:
        time_cell = f"{ratio_text(time.median)} ({ratio_text(time.low)}-{ratio_text(time.high)})"
    return [
        milliseconds_range_text(measurement.rounds),
        f"{measurement.peak_mb:,.0f}",
        time_cell,
        ratio_text(memory) if memory else "",
        f"{measurement.first_s:.2f}",
    ]


def _as_data(measurement: Measurement) -> dict[str, Any]:
    return {
        "seconds": measurement.seconds,
        "rounds": measurement.rounds,
        "first_s": measurement.first_s,
        "peak_mb": measurement.peak_mb,
        "failure": measurement.failure,
    }


def _time_goal(
    name: str, n_devices: int, measurements: dict[str, Measurement], target: float, cores: str
) -> Goal:
    ratio = time_ratio(measurements["simulated"], measurements["unsharded"])
    return Goal(
        f"{programs.TITLES[name]}: simulated / unsharded, {n_devices} devices, {cores}",
        target,
        ratio.median if ratio else None,
        note=_failures_text(measurements),
    )


def _memory_goal(name: str, n_devices: int, measurements: dict[str, Measurement]) -> Goal:
    return Goal(
        f"{programs.TITLES[name]}: simulated / unsharded, memory, {n_devices} devices",
        1.1,
        memory_ratio(measurements["simulated"], measurements["unsharded"]),
        note=_failures_text(measurements),
    )


def _forced_device_goals(name: str, measurements: dict[str, Measurement]) -> list[Goal]:
    speedup = time_ratio(measurements["forced"], measurements["simulated"])
    memory = memory_ratio(measurements["simulated"], measurements["forced"])
    title, note = programs.TITLES[name], _failures_text(measurements)
    return [
        Goal(
            f"{title}: forced host devices / simulated, time, 256 devices",
            _SPEEDUP_AT_256[name],
            speedup.median if speedup else None,
            at_most=False,
            note=note,
        ),
        Goal(
            f"{title}: simulated / forced host devices, memory, 256 devices",
            _MEMORY_AT_256,
            memory,
            note=note,
        ),
    ]


def _failures_text(measurements: dict[str, Measurement]) -> str:
    return "; ".join(
        f"{kind} {measurement.failure}"
        for kind, measurement in measurements.items()
        if measurement.failure
    )
