"""One contender in a process of its own: does what it is asked over a pipe, one line a question.

The process stays alive, so that contenders can take turns; memory is its whole peak, its framework
included. Nothing here imports JAX: the PyTorch contender lives where there is none.
"""

from __future__ import annotations

import abc
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

Answer = dict[str, Any]


class Worker(abc.ABC):
    """A program made ready to run; its public methods are the questions it answers."""

    result: Any = None

    @abc.abstractmethod
    def call(self) -> Any:
        """Run the program once, to the end."""

    @abc.abstractmethod
    def leaves(self) -> list[Any]:
        """Return the arrays of the last result, whole and in the order of `jax.tree.leaves`."""

    def first(self) -> Answer:
        """Trace, compile and run for the first time; run once more for the peak of memory."""
        first, second = self._timed(), self._timed()
        return {"first_s": first, "second_s": second, "peak_mb": peak_mb()}

    def turn(self, calls: int) -> Answer:
        return {"seconds": [self._timed() for _ in range(calls)]}

    def save(self, path: str) -> Answer:
        import numpy as np

        np.savez(path, *self.leaves())
        return {}

    def check(self, path: str) -> Answer:
        """Compare the last result with the saved one; sums in another order round otherwise."""
        import numpy as np

        with np.load(path) as stored:
            expected = [stored[name] for name in stored.files]
        for number, (ours, right) in enumerate(zip(self.leaves(), expected, strict=True)):
            if not np.allclose(ours, right, rtol=1e-3, atol=1e-4 * np.abs(right).max()):
                largest = np.abs(ours - right).max()
                raise ValueError(f"array {number} of the result is wrong, by up to {largest:.3g}")
        return {}

    def _timed(self) -> float:
        start = time.perf_counter()
        self.result = self.call()
        return time.perf_counter() - start


def peak_mb() -> float:
    """Return the most memory this process has ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(make: Callable[..., Worker]) -> None:
    """Make the worker that the command line describes and answer until standard input closes."""
    answers = _private_stdout()
    settings = json.loads(sys.argv[1])
    _pin(settings.pop("cores", None))
    worker = make(**settings)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        answer = getattr(worker, question.pop("do"))(**question)
        print(json.dumps(answer), file=answers, flush=True)


def _pin(cores: int | None) -> None:
    """Keep this process on its first `cores` cores; before a framework counts its threads."""
    if cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def _private_stdout() -> Any:
    """Return standard output for answers; whatever else prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers
