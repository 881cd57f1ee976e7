"""The same programs in PyTorch's LocalTensor, which loops over ranks in Python."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import jax_worker, programs, torch_environment
from benchmarks.contest import Entry, Figures, hold, ratio
from benchmarks.options import Options
from benchmarks.section import Bar, Section, milliseconds, times

_PROGRAMS = ("mlp", "gather", "ring")
# The number of ranks from which the simulator is to be ahead.
_AHEAD_FROM = 64


def run(options: Options) -> Section:
    """Measure simulated against LocalTensor at every number of ranks."""
    section = Section(
        "PyTorch LocalTensor",
        ["program", "ranks", "simulated ms / MB", "LocalTensor ms / MB", "LocalTensor / simulated"],
    )
    for name in _PROGRAMS:
        for n_ranks in options.devices:
            _measure(section, name, n_ranks, options)
    return section


def _measure(section: Section, name: str, n_ranks: int, options: Options) -> None:
    figures = _contest(name, n_ranks, options)
    ours, theirs = figures["simulated"], figures["torch"]
    against = ratio(theirs, ours)
    title = programs.TITLES[name]
    section.rows.append(
        [title, str(n_ranks), _cell(ours), _cell(theirs), times(against and against.median)]
    )
    section.data += [
        {
            "program": name,
            "ranks": n_ranks,
            "contender": kind,
            "rounds": one.rounds,
            "peak_mb": one.peak_mb,
            "why_not": one.why_not,
        }
        for kind, one in figures.items()
    ]
    if n_ranks >= _AHEAD_FROM:
        section.bars.append(
            Bar(
                f"{title}: LocalTensor / simulated, {n_ranks} ranks",
                1.0,
                against.median if against else None,
                at_most=False,
                note=theirs.why_not or ours.why_not,
            )
        )


def _contest(name: str, n_ranks: int, options: Options) -> dict[str, Figures]:
    program = programs.make(name, n_ranks)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "inputs.npz"))
        np.savez(path, **_named(name, program.inputs()))
        settings = {"program": name, "mesh": program.mesh, "inputs": path}
        theirs = [torch_environment.python(), "-m", "benchmarks.torch_worker", json.dumps(settings)]
        commands = {
            kind: jax_worker.command(kind=kind, program=name, devices=n_ranks)
            for kind in ("unsharded", "simulated")
        }
        commands["torch"] = theirs
        entries = {
            kind: Entry(command, options.limit_s) for kind, command in commands.items()
        }
        return hold(entries, options.rounds)


def _named(name: str, inputs: tuple[object, ...]) -> dict[str, object]:
    if name == "mlp":
        params, x, y = inputs
        assert isinstance(params, dict)
        return {**params, "x": x, "y": y}
    a, b = inputs
    return {"a": a, "b": b}


def _cell(one: Figures) -> str:
    if not one.rounds:
        return f"not measured: {one.why_not}"
    return f"{milliseconds(one.seconds)} / {one.peak_mb:,.0f}"
