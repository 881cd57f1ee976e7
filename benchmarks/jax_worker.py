"""The worker for programs under JAX: unsharded, simulated, or forced (on real host devices).

`python -m benchmarks.jax_worker '{"kind": "simulated", "program": "mlp", "devices": 64}'`
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from typing import Any

from benchmarks import worker
from benchmarks.worker import Response


class JaxWorker(worker.Worker):
    """One variant of one program, jitted, with its inputs on their devices."""

    def __init__(self, kind: str, program: str, devices: int) -> None:
        # Imported late: the process must be pinned before JAX counts its cores.
        import jax

        from benchmarks import programs

        # Takes effect only before the CPU backend starts, so before any other JAX call.
        if kind == "forced":
            jax.config.update("jax_num_cpu_devices", devices)
        self.program = programs.make_program(program, devices)
        self.kind = kind
        self.args = self._put_on_devices(self.program.inputs())
        self.step = jax.jit(self._step_function())

    def run_program(self) -> Any:
        import jax

        # JAX dispatches asynchronously: without blocking, only the dispatch would be timed.
        return jax.block_until_ready(self.step(*self.args))

    def result_arrays(self) -> list[Any]:
        import jax
        import numpy as np

        return [np.asarray(leaf) for leaf in jax.tree.leaves(self.result)]

    def time_stages(self) -> Response:
        """Time the stages of the first call separately, without running the program."""
        marks = [time.perf_counter()]
        traced = self.step.trace(*self.args)
        marks.append(time.perf_counter())
        lowered = traced.lower()
        marks.append(time.perf_counter())
        lowered.compile()
        marks.append(time.perf_counter())
        seconds = [end - start for start, end in itertools.pairwise(marks)]
        return dict(zip(("trace_s", "lower_s", "compile_s"), seconds, strict=True))

    def _step_function(self) -> Any:
        import jax

        program = self.program
        if self.kind == "unsharded":
            return program.unsharded
        specs = {"in_specs": program.in_specs, "out_specs": program.out_specs}
        if self.kind == "simulated":
            import shardlab

            return shardlab.shard_map(program.body, mesh=program.mesh, **specs)
        return jax.shard_map(program.body, mesh=self._host_device_mesh(), **specs)

    def _put_on_devices(self, inputs: Any) -> Any:
        """Return the inputs, sharded as the program expects, so a step transfers none of them."""
        import jax
        from jax.sharding import NamedSharding

        if self.kind != "forced":
            return jax.block_until_ready(jax.device_put(inputs))
        mesh = self._host_device_mesh()
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), self.program.in_specs)
        return jax.block_until_ready(jax.device_put(inputs, shardings))

    def _host_device_mesh(self) -> Any:
        import jax

        axes = self.program.mesh
        # The default of make_mesh is Explicit (JAX 0.10); the programs are written for Auto.
        types = (jax.sharding.AxisType.Auto,) * len(axes)
        return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=types)


def worker_command(**settings: Any) -> list[str]:
    """Return the command that starts such a worker with this interpreter."""
    return [sys.executable, "-m", "benchmarks.jax_worker", json.dumps(settings)]


if __name__ == "__main__":
    worker.serve_requests(JaxWorker)
