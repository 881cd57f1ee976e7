"""Tracing a jit with NamedShardings for 512 devices, against the bare compile of the same jit.

Both are whole processes, from their start to their end: bare is plain JAX on forced host devices,
which lowers and compiles; trace is `shardlab.trace`, which lists what the compiler inserts.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from typing import Any

from benchmarks.contender import NotMeasured, contender
from benchmarks.options import Options
from benchmarks.section import Bar, Section, times
from benchmarks.worker import Answer

_MESH = {"data": 16, "model": 32}
_BOUND = 1.3
_KINDS = ("bare", "trace")


def run(options: Options) -> Section:
    """Time both, taking turns, each in a fresh process."""
    section = Section(
        "What the compiler inserts into the 24-layer step, 512 devices",
        ["contender", "s (lowest-highest)", "/ bare", "calls", "argument bytes of one device"],
    )
    seconds: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    answers: dict[str, Answer] = {}
    why_not: dict[str, str] = {}
    for _ in range(options.fresh):
        for kind in _KINDS:
            if kind not in why_not:
                try:
                    seconds[kind].append(_measure(kind, options.limit_s, answers))
                except NotMeasured as reason:
                    why_not[kind] = str(reason)
    medians = {kind: statistics.median(each) for kind, each in seconds.items() if each}
    ratio = medians["trace"] / medians["bare"] if len(medians) == len(_KINDS) else None
    for kind in _KINDS:
        section.rows.append(_row(kind, seconds[kind], answers.get(kind), ratio, why_not))
        section.data.append({"contender": kind, "seconds": seconds[kind], **answers.get(kind, {})})
    note = "; ".join(f"{kind} {reason}" for kind, reason in why_not.items())
    what = "24-layer step, 512 devices: jit trace / bare compile, whole processes"
    section.bars.append(Bar(what, _BOUND, ratio, note=note))
    section.notes = ["the trace compiles without optimising machine code that nobody runs"]
    return section


def _measure(kind: str, limit_s: float, answers: dict[str, Answer]) -> float:
    start = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.jit_trace", kind]
    with contender(kind, command, limit_s) as one:
        answers[kind] = one._answer()
    return time.perf_counter() - start


def _row(
    kind: str,
    seconds: list[float],
    answer: Answer | None,
    ratio: float | None,
    why_not: dict[str, str],
) -> list[str]:
    if not seconds or answer is None:
        return [kind, f"not measured: {why_not.get(kind, '')}", "-", "-", "-"]
    spread = f"{statistics.median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})"
    calls = str(answer["calls"]) if answer["calls"] is not None else "-"
    against = times(ratio) if kind == "trace" else ""
    return [kind, spread, against, calls, f"{answer['argument_bytes']:,}"]


# ------------------------------------------------------------------------------ in the process


def _program(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    import jax
    from jax.sharding import NamedSharding

    from benchmarks.programs import transformer

    size = transformer.Size(heads=_MESH["model"])
    program = dataclasses.replace(transformer.program(512, size), mesh=_MESH)
    ins, outs = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), (program.in_specs, program.out_specs)
    )
    step = jax.jit(program.unsharded, in_shardings=ins, out_shardings=outs)
    return step, jax.eval_shape(program.inputs)


def bare() -> Answer:
    import jax

    jax.config.update("jax_num_cpu_devices", 512)
    types = (jax.sharding.AxisType.Auto,) * len(_MESH)
    mesh = jax.make_mesh(tuple(_MESH.values()), tuple(_MESH), axis_types=types)
    step, args = _program(mesh)
    memory = step.lower(*args).compile().memory_analysis()
    return {"calls": None, "argument_bytes": memory.argument_size_in_bytes}


def trace() -> Answer:
    import shardlab
    from shardlab.simulator.virtual_devices.devices import virtual_mesh

    mesh = virtual_mesh(_MESH)
    step, args = _program(mesh)
    told = shardlab.trace(step, *args, mesh=mesh)
    assert told.memory is not None
    return {"calls": len(told.collectives), "argument_bytes": told.memory.argument_bytes}


if __name__ == "__main__":
    print(json.dumps({"ready": True}), flush=True)
    print(json.dumps({"bare": bare, "trace": trace}[sys.argv[1]]()), flush=True)
