"""Section `trace`: tracing and checking a shard_map program for 512 devices.

One process alternates between `jax.make_jaxpr` and `shardlab.trace`, which traces, lists the
collectives and makes every check that needs no run. JAX's caches are cleared before each.
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

from benchmarks.options import Options
from benchmarks.report import Goal, Section, milliseconds_range_text, ratio_text
from benchmarks.worker import Response
from benchmarks.worker_client import NotMeasured, start_worker

_MESH = {"data": 16, "model": 32}
_TARGET = 1.5
_KINDS = ("make_jaxpr", "trace")


def measure_traces(options: Options) -> Section:
    """Time both, alternately, in one process."""
    section = Section(
        "Tracing and checking the 24-layer step, 512 devices",
        ["variant", "ms, median (min-max)", "/ make_jaxpr", "collective calls", "findings"],
    )
    ratio, note = None, ""
    try:
        response = _measure_in_process(options)
    except NotMeasured as reason:
        note = str(reason)
        section.rows.append(["both", f"not measured: {note}", "-", "-", "-"])
    else:
        seconds = {kind: response[kind] for kind in _KINDS}
        ratio = statistics.median(seconds["trace"]) / statistics.median(seconds["make_jaxpr"])
        for kind in _KINDS:
            cells = [ratio_text(ratio), str(response["calls"]), str(response["findings"])]
            section.rows.append(
                [
                    kind,
                    milliseconds_range_text(seconds[kind]),
                    *(cells if kind == "trace" else [""] * len(cells)),
                ]
            )
            section.data.append({"variant": kind, "seconds": seconds[kind]})
    name = "24-layer step, data=16,model=32: trace with static checks / make_jaxpr"
    section.goals.append(Goal(name, _TARGET, ratio, note=note))
    return section


def _measure_in_process(options: Options) -> Response:
    command = [sys.executable, "-m", "benchmarks.shard_map_trace", str(options.rounds)]
    with start_worker("trace", command, options.limit_s) as client:
        return client.read_response()


# --------------------------------------------------------------------------- in the new process


def make_train_step() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the train step and its arguments: 24 layers, enough heads for `model=32`."""
    import jax

    from benchmarks.programs import transformer

    size = transformer.Size(heads=_MESH["model"])
    program = dataclasses.replace(transformer.make_program(512, size), mesh=_MESH)
    step = jax.shard_map(program.body, in_specs=program.in_specs, out_specs=program.out_specs)
    return step, jax.eval_shape(program.inputs)


def time_alternately(rounds: int) -> Response:
    """Time `make_jaxpr` and `trace` in every round."""
    import jax

    import shardlab
    from shardlab.simulator.virtual_devices.devices import virtual_mesh

    step, args = make_train_step()
    mesh = virtual_mesh(_MESH)

    def make_jaxpr() -> Any:
        with jax.set_mesh(mesh):
            return jax.make_jaxpr(step)(*args)

    trace = shardlab.trace(step, *args, mesh=mesh)  # also loads the modules that import late
    runs = {"make_jaxpr": make_jaxpr, "trace": lambda: shardlab.trace(step, *args, mesh=mesh)}
    seconds: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    for _ in range(rounds):
        for kind in _KINDS:
            # Without this, whichever runs second reuses the jaxprs of inner jits from the first.
            jax.clear_caches()
            gc.collect()
            start = time.perf_counter()
            runs[kind]()
            seconds[kind].append(time.perf_counter() - start)
    return {**seconds, "calls": len(trace.collectives), "findings": len(trace.findings)}


if __name__ == "__main__":
    print(json.dumps({"ready": True}), flush=True)
    print(json.dumps(time_alternately(int(sys.argv[1]))), flush=True)
