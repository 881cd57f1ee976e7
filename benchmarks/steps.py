"""Time and memory of one step: simulated, unsharded, and on real forced host devices."""

from __future__ import annotations

from typing import Any

from benchmarks import jax_worker, programs
from benchmarks.contest import Entry, Figures, hold, memory_ratio, ratio
from benchmarks.options import Options
from benchmarks.section import Bar, Section, milliseconds, times

_COLUMNS = [
    "devices",
    "contender",
    "ms (lowest-highest)",
    "peak MB",
    "simulated / it, time",
    "simulated / it, memory",
    "first call s",
]
# The programs that are held to the time and memory of the unsharded one.
_MLPS = ("mlp", "mlp-wide")
# At 256 devices: how many times faster than forced host devices, and what part of their memory.
_FASTER_AT_256 = {"mlp": 2.0, "mlp-wide": 2.0, "gather": 10.0, "ring": 10.0, "transformer": 10.0}
_MEMORY_AT_256 = 0.5


def run(name: str, options: Options) -> Section:
    """Measure program `name` at every number of devices, with all cores."""
    section = Section(programs.TITLES[name], _COLUMNS)
    for n_devices in options.devices:
        figures = _contest(name, n_devices, options, ("unsharded", "simulated", "forced"), None)
        _add_rows(section, n_devices, figures)
        if name in _MLPS:
            section.bars.append(_against_unsharded(name, n_devices, figures, 1.3, "all cores"))
            section.bars.append(_memory_against_unsharded(name, n_devices, figures))
        if n_devices == 256:
            section.bars += _against_forced(name, figures)
    return section


def run_one_core(name: str, options: Options) -> Section:
    """Measure an MLP step with every contender pinned to one core."""
    section = Section(f"{programs.TITLES[name]}, one core", _COLUMNS)
    for n_devices in options.devices:
        figures = _contest(name, n_devices, options, ("unsharded", "simulated"), 1)
        _add_rows(section, n_devices, figures)
        section.bars.append(_against_unsharded(name, n_devices, figures, 1.15, "one core"))
    return section


def _contest(
    name: str, n_devices: int, options: Options, kinds: tuple[str, ...], cores: int | None
) -> dict[str, Figures]:
    settings = {"program": name, "devices": n_devices, "cores": cores}
    entries = {
        kind: Entry(jax_worker.command(kind=kind, **settings), options.limit_s)
        for kind in kinds
    }
    return hold(entries, options.rounds)


def _add_rows(section: Section, n_devices: int, figures: dict[str, Figures]) -> None:
    for kind, one in figures.items():
        section.rows.append([str(n_devices), kind, *_cells(one, figures["simulated"])])
        section.data.append({"devices": n_devices, "contender": kind, **_plain(one)})
        if one.why_not and one.rounds:
            section.notes.append(f"{kind}, {n_devices} devices: stopped early: {one.why_not}")


def _cells(one: Figures, simulated: Figures) -> list[str]:
    if not one.rounds:
        return ["not measured: " + one.why_not, "-", "-", "-", "-"]
    spread = f"{milliseconds(min(one.rounds))}-{milliseconds(max(one.rounds))}"
    against = ratio(simulated, one) if one is not simulated else None
    memory = memory_ratio(simulated, one) if one is not simulated else None
    return [
        f"{milliseconds(one.seconds)} ({spread})",
        f"{one.peak_mb:,.0f}",
        f"{times(against.median)} ({times(against.low)}-{times(against.high)})" if against else "",
        times(memory) if memory else "",
        f"{one.first_s:.2f}",
    ]


def _plain(one: Figures) -> dict[str, Any]:
    return {
        "seconds": one.seconds,
        "rounds": one.rounds,
        "first_s": one.first_s,
        "peak_mb": one.peak_mb,
        "why_not": one.why_not,
    }


def _against_unsharded(
    name: str, n_devices: int, figures: dict[str, Figures], bound: float, cores: str
) -> Bar:
    against = ratio(figures["simulated"], figures["unsharded"])
    what = f"{programs.TITLES[name]}: simulated / unsharded, {n_devices} devices, {cores}"
    return Bar(what, bound, against.median if against else None, note=_why(figures))


def _memory_against_unsharded(name: str, n_devices: int, figures: dict[str, Figures]) -> Bar:
    memory = memory_ratio(figures["simulated"], figures["unsharded"])
    what = f"{programs.TITLES[name]}: simulated / unsharded, memory, {n_devices} devices"
    return Bar(what, 1.1, memory, note=_why(figures))


def _against_forced(name: str, figures: dict[str, Figures]) -> list[Bar]:
    faster = ratio(figures["forced"], figures["simulated"])
    memory = memory_ratio(figures["simulated"], figures["forced"])
    title, why = programs.TITLES[name], _why(figures)
    return [
        Bar(
            f"{title}: forced host devices / simulated, time, 256 devices",
            _FASTER_AT_256[name],
            faster.median if faster else None,
            at_most=False,
            note=why,
        ),
        Bar(
            f"{title}: simulated / forced host devices, memory, 256 devices",
            _MEMORY_AT_256,
            memory,
            note=why,
        ),
    ]


def _why(figures: dict[str, Figures]) -> str:
    return "; ".join(f"{kind} {one.why_not}" for kind, one in figures.items() if one.why_not)
