"""A program under JAX: unsharded, simulated, or forced (on real host devices).

`python -m benchmarks.jax_worker '{"kind": "simulated", "program": "mlp", "devices": 64}'`
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from typing import Any

from benchmarks import worker
from benchmarks.worker import Answer


class JaxWorker(worker.Worker):
    def __init__(self, kind: str, program: str, devices: int) -> None:
        # Only now: the process must have been pinned before JAX counts its cores.
        import jax

        from benchmarks import programs

        if kind == "forced":
            jax.config.update("jax_num_cpu_devices", devices)
        self.program = programs.make(program, devices)
        self.kind = kind
        self.args = self._place(self.program.inputs())
        self.step = jax.jit(self._function())

    def call(self) -> Any:
        import jax

        return jax.block_until_ready(self.step(*self.args))

    def leaves(self) -> list[Any]:
        import jax
        import numpy as np

        return [np.asarray(leaf) for leaf in jax.tree.leaves(self.result)]

    def stages(self) -> Answer:
        """Time the stages of the first call apart, without running the program."""
        marks = [time.perf_counter()]
        traced = self.step.trace(*self.args)
        marks.append(time.perf_counter())
        lowered = traced.lower()
        marks.append(time.perf_counter())
        lowered.compile()
        marks.append(time.perf_counter())
        seconds = [after - before for before, after in itertools.pairwise(marks)]
        return dict(zip(("trace_s", "lower_s", "compile_s"), seconds, strict=True))

    def _function(self) -> Any:
        import jax

        program = self.program
        if self.kind == "unsharded":
            return program.unsharded
        specs = {"in_specs": program.in_specs, "out_specs": program.out_specs}
        if self.kind == "simulated":
            from shardlab.simulator.shard_map import shard_map

            return shard_map(program.body, mesh=program.mesh_text, **specs)
        return jax.shard_map(program.body, mesh=self._real_mesh(), **specs)

    def _place(self, inputs: Any) -> Any:
        """Put the inputs where the program wants them, so that a step moves none of them."""
        import jax
        from jax.sharding import NamedSharding

        if self.kind != "forced":
            return jax.block_until_ready(jax.device_put(inputs))
        mesh = self._real_mesh()
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), self.program.in_specs)
        return jax.block_until_ready(jax.device_put(inputs, shardings))

    def _real_mesh(self) -> Any:
        import jax

        axes = self.program.mesh
        types = (jax.sharding.AxisType.Auto,) * len(axes)
        return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=types)


def command(**settings: Any) -> list[str]:
    """Return the command that starts such a worker in this Python."""
    return [sys.executable, "-m", "benchmarks.jax_worker", json.dumps(settings)]


if __name__ == "__main__":
    worker.main(JaxWorker)
