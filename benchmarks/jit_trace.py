"""Section `jit-trace`: tracing a jit with NamedShardings for 512 devices, against compiling it.

Both are timed as full processes, from start to exit. `bare` is plain JAX on forced host devices,
which lowers and compiles; `trace` is `shardlab.trace`, which lists the collectives that the
compiler inserts.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from typing import Any

from benchmarks.options import Options
from benchmarks.report import Goal, Section, ratio_text
from benchmarks.worker import Response
from benchmarks.worker_client import NotMeasured, start_worker

_MESH = {"data": 16, "model": 32}
_TARGET = 1.3
_KINDS = ("bare", "trace")


def measure_jit_traces(options: Options) -> Section:
    """Time both, alternately, each in new processes."""
    section = Section(
        "Collectives that the compiler inserts into the 24-layer step, 512 devices",
        [
            "variant",
            "s, median (min-max)",
            "/ bare",
            "collective calls",
            "argument bytes per device",
        ],
    )
    seconds: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    responses: dict[str, Response] = {}
    failures: dict[str, str] = {}
    for _ in range(options.processes):
        for kind in _KINDS:
            if kind not in failures:
                try:
                    seconds[kind].append(_time_process(kind, options.limit_s, responses))
                except NotMeasured as reason:
                    failures[kind] = str(reason)
    medians = {kind: statistics.median(times) for kind, times in seconds.items() if times}
    ratio = medians["trace"] / medians["bare"] if len(medians) == len(_KINDS) else None
    for kind in _KINDS:
        response = responses.get(kind)
        cells = [f"not measured: {failures.get(kind, '')}", "-", "-", "-"]
        if seconds[kind] and response is not None:
            cells = _row_cells(seconds[kind], response, ratio if kind == "trace" else None)
        section.rows.append([kind, *cells])
        section.data.append({"variant": kind, "seconds": seconds[kind], **(response or {})})
    note = "; ".join(f"{kind} {reason}" for kind, reason in failures.items())
    name = "24-layer step, 512 devices: jit trace / bare compile, full processes"
    section.goals.append(Goal(name, _TARGET, ratio, note=note))
    section.notes = ["The trace compiles without code optimization, because nothing runs."]
    return section


def _time_process(kind: str, limit_s: float, responses: dict[str, Response]) -> float:
    start = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.jit_trace", kind]
    with start_worker(kind, command, limit_s) as client:
        responses[kind] = client.read_response()
    return time.perf_counter() - start


def _row_cells(seconds: list[float], response: Response, ratio: float | None) -> list[str]:
    return [
        f"{statistics.median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})",
        "" if ratio is None else ratio_text(ratio),
        "-" if response["calls"] is None else str(response["calls"]),
        f"{response['argument_bytes']:,}",
    ]


# --------------------------------------------------------------------------- in the new process


def _make_train_step(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    import jax
    from jax.sharding import NamedSharding

    from benchmarks.programs import transformer

    size = transformer.Size(heads=_MESH["model"])
    program = dataclasses.replace(transformer.make_program(512, size), mesh=_MESH)
    in_shardings, out_shardings = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), (program.in_specs, program.out_specs)
    )
    step = jax.jit(program.unsharded, in_shardings=in_shardings, out_shardings=out_shardings)
    return step, jax.eval_shape(program.inputs)


def compile_with_jax() -> Response:
    import jax

    # The compiler needs as many devices as partitions; shardlab.trace needs none.
    jax.config.update("jax_num_cpu_devices", 512)
    types = (jax.sharding.AxisType.Auto,) * len(_MESH)
    mesh = jax.make_mesh(tuple(_MESH.values()), tuple(_MESH), axis_types=types)
    step, args = _make_train_step(mesh)
    memory = step.lower(*args).compile().memory_analysis()
    return {"calls": None, "argument_bytes": memory.argument_size_in_bytes}


def trace_with_shardlab() -> Response:
    import shardlab
    from shardlab.simulator.virtual_devices.devices import virtual_mesh

    mesh = virtual_mesh(_MESH)
    step, args = _make_train_step(mesh)
    trace = shardlab.trace(step, *args, mesh=mesh)
    assert trace.memory is not None
    return {"calls": len(trace.collectives), "argument_bytes": trace.memory.argument_bytes}


if __name__ == "__main__":
    measure = {"bare": compile_with_jax, "trace": trace_with_shardlab}[sys.argv[1]]
    print(json.dumps({"ready": True}), flush=True)
    print(json.dumps(measure()), flush=True)
