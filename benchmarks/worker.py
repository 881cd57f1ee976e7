"""One contender in a process of its own: does what it is asked over a pipe, one line a question.

The process stays alive, so that contenders can take turns; memory is its whole peak, JAX included.
`python -m benchmarks.worker '{"kind": "simulated", "program": "mlp", "devices": 64}'`
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import sys
import time
from typing import Any

Answer = dict[str, Any]


class Worker:
    """A program made ready to run as `kind`: unsharded, simulated or forced (host devices)."""

    def __init__(self, kind: str, program: str, devices: int) -> None:
        import jax

        from benchmarks import programs

        if kind == "forced":
            jax.config.update("jax_num_cpu_devices", devices)
        self.program = programs.make(program, devices)
        self.kind = kind
        self.args = self._place(self.program.inputs())
        self.step = jax.jit(self._function())
        self.result: Any = None

    def _function(self) -> Any:
        import jax

        program = self.program
        if self.kind == "unsharded":
            return program.unsharded
        specs = {"in_specs": program.in_specs, "out_specs": program.out_specs}
        if self.kind == "simulated":
            from shardlab.engine.shard_map import shard_map

            return shard_map(program.body, mesh=program.mesh_text, **specs)
        return jax.shard_map(program.body, mesh=self._real_mesh(), **specs)

    def _real_mesh(self) -> Any:
        import jax

        axes = self.program.mesh
        types = (jax.sharding.AxisType.Auto,) * len(axes)
        return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=types)

    def _place(self, inputs: Any) -> Any:
        """Put the inputs where the program wants them, so that a step moves none of them."""
        import jax
        from jax.sharding import NamedSharding

        if self.kind != "forced":
            return jax.block_until_ready(jax.device_put(inputs))
        mesh = self._real_mesh()
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), self.program.in_specs)
        return jax.block_until_ready(jax.device_put(inputs, shardings))

    def first(self) -> Answer:
        """Trace, compile and run for the first time; run once more for the peak of memory."""
        start = time.perf_counter()
        self._run()
        seconds = time.perf_counter() - start
        again = self._run()
        return {"first_s": seconds, "second_s": again, "peak_mb": peak_mb()}

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

    def save(self, path: str) -> Answer:
        import numpy as np

        np.savez(path, *self._leaves())
        return {}

    def check(self, path: str) -> Answer:
        """Compare the last result with the unsharded one; sums in another order round otherwise."""
        import numpy as np

        with np.load(path) as stored:
            expected = [stored[name] for name in stored.files]
        for ours, right in zip(self._leaves(), expected, strict=True):
            np.testing.assert_allclose(ours, right, rtol=1e-3, atol=1e-3 * np.abs(right).max())
        return {}

    def turn(self, calls: int) -> Answer:
        return {"seconds": [self._run() for _ in range(calls)]}

    def _run(self) -> float:
        import jax

        start = time.perf_counter()
        self.result = jax.block_until_ready(self.step(*self.args))
        return time.perf_counter() - start

    def _leaves(self) -> list[Any]:
        import jax
        import numpy as np

        return [np.asarray(leaf) for leaf in jax.tree.leaves(self.result)]


def peak_mb() -> float:
    """Return the most memory this process has ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def pin(cores: int | None) -> None:
    """Keep this process on its first `cores` cores; before JAX starts and counts its threads."""
    if cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def serve(worker: Any, answers: Any) -> None:
    """Answer the questions on standard input until it closes."""
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        answer = getattr(worker, question.pop("do"))(**question)
        print(json.dumps(answer), file=answers, flush=True)


def private_stdout() -> Any:
    """Return standard output for answers; whatever else prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def main() -> None:
    answers = private_stdout()
    settings = json.loads(sys.argv[1])
    pin(settings.pop("cores", None))
    serve(Worker(**settings), answers)


if __name__ == "__main__":
    main()
