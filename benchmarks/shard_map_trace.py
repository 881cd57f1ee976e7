"""Tracing and checking a shard_map program for 512 devices, against JAX's own tracing of it.

One process takes turns: `jax.make_jaxpr`, then `shardlab.trace`, which traces, lists what is
communicated and makes every check that needs no run. JAX's caches are emptied before each.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.contender import NotMeasured, contender
from benchmarks.options import Options
from benchmarks.section import Bar, Section, milliseconds, times
from benchmarks.worker import Answer

_MESH = {"data": 16, "model": 32}
_BOUND = 1.5
_KINDS = ("make_jaxpr", "trace")


def run(options: Options) -> Section:
    """Time both, taking turns in one process."""
    section = Section(
        "Tracing and checking the 24-layer step, 512 devices",
        ["contender", "ms (lowest-highest)", "/ make_jaxpr", "calls", "findings"],
    )
    ratio, note = None, ""
    try:
        answer = _measure(options)
    except NotMeasured as reason:
        note = str(reason)
        section.rows.append(["both", f"not measured: {note}", "-", "-", "-"])
    else:
        seconds = {kind: answer[kind] for kind in _KINDS}
        ratio = statistics.median(seconds["trace"]) / statistics.median(seconds["make_jaxpr"])
        for kind in _KINDS:
            told = [times(ratio), str(answer["calls"]), str(answer["findings"])]
            section.rows.append(
                [kind, _spread(seconds[kind]), *(told if kind == "trace" else [""] * 3)]
            )
            section.data.append({"contender": kind, "seconds": seconds[kind]})
    what = "24-layer step, data=16,model=32: trace with static checks / make_jaxpr"
    section.bars.append(Bar(what, _BOUND, ratio, note=note))
    return section


def _measure(options: Options) -> Answer:
    command = [sys.executable, "-m", "benchmarks.shard_map_trace", str(options.rounds)]
    with contender("trace", command, options.limit_s) as one:
        return one._answer()


def _spread(seconds: list[float]) -> str:
    low, high = milliseconds(min(seconds)), milliseconds(max(seconds))
    return f"{milliseconds(statistics.median(seconds))} ({low}-{high})"


# ------------------------------------------------------------------------------ in the process


def program() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the train step and its arguments: 24 layers, heads enough for `model=32`."""
    import jax

    from benchmarks.programs import transformer

    size = transformer.Size(heads=_MESH["model"])
    found = dataclasses.replace(transformer.program(512, size), mesh=_MESH)
    step = jax.shard_map(found.body, in_specs=found.in_specs, out_specs=found.out_specs)
    return step, jax.eval_shape(found.inputs)


def take_turns(rounds: int) -> Answer:
    import jax

    import shardlab
    from shardlab.simulator.virtual_devices.devices import virtual_mesh

    step, args = program()
    mesh = virtual_mesh(_MESH)

    def make_jaxpr() -> Any:
        with jax.set_mesh(mesh):
            return jax.make_jaxpr(step)(*args)

    told = shardlab.trace(step, *args, mesh=mesh)  # what is imported late is not timed
    runs = {"make_jaxpr": make_jaxpr, "trace": lambda: shardlab.trace(step, *args, mesh=mesh)}
    seconds: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    for _ in range(rounds):
        for kind in _KINDS:
            jax.clear_caches()
            gc.collect()
            start = time.perf_counter()
            runs[kind]()
            seconds[kind].append(time.perf_counter() - start)
    return {**seconds, "calls": len(told.collectives), "findings": len(told.findings)}


if __name__ == "__main__":
    print(json.dumps({"ready": True}), flush=True)
    print(json.dumps(take_turns(int(sys.argv[1]))), flush=True)
