"""A benchmark worker: one variant of a program in its own process, driven by requests on stdin.

A request is one line of JSON that names a method of the worker, a response one line of JSON. The
process stays alive between requests, so the variants can be timed alternately; its peak memory
includes the framework. This module imports no JAX: the PyTorch environment does not have it.
"""

from __future__ import annotations

import abc
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

Response = dict[str, Any]


class Worker(abc.ABC):
    """A program that is ready to run. Requests call its public methods by name."""

    result: Any = None

    @abc.abstractmethod
    def run_program(self) -> Any:
        """Run the program once and block until its result is ready."""

    @abc.abstractmethod
    def result_arrays(self) -> list[Any]:
        """Return the arrays of the last result, unsharded, in the order of `jax.tree.leaves`."""

    def first_calls(self) -> Response:
        """Trace, compile and run, then run again: buffers of two calls can overlap at the peak."""
        first, second = self._time_call(), self._time_call()
        return {"first_s": first, "second_s": second, "peak_mb": peak_memory_mb()}

    def time_calls(self, n_calls: int) -> Response:
        return {"seconds": [self._time_call() for _ in range(n_calls)]}

    def save_result(self, path: str) -> Response:
        import numpy as np

        np.savez(path, *self.result_arrays())
        return {}

    def check_result(self, path: str) -> Response:
        """Compare the last result with a saved one; raise if it is wrong."""
        import numpy as np

        with np.load(path) as stored:
            expected = [stored[name] for name in stored.files]
        for number, (ours, reference) in enumerate(
            zip(self.result_arrays(), expected, strict=True)
        ):
            # Sums over devices are added in another order, and small elements of a large sum lose
            # the most digits: the absolute tolerance scales with the largest element.
            if not np.allclose(ours, reference, rtol=1e-3, atol=1e-4 * np.abs(reference).max()):
                error = np.abs(ours - reference).max()
                raise ValueError(f"array {number} of the result is wrong, by up to {error:.3g}")
        return {}

    def _time_call(self) -> float:
        start = time.perf_counter()
        self.result = self.run_program()
        return time.perf_counter() - start


def peak_memory_mb() -> float:
    """Return the peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6  # KiB on Linux


def serve_requests(make_worker: Callable[..., Worker]) -> None:
    """Make the worker that the command line describes; serve requests until stdin closes."""
    responses = _private_stdout()
    settings = json.loads(sys.argv[1])
    _pin_to_cores(settings.pop("cores", None))
    worker = make_worker(**settings)
    print(json.dumps({"ready": True}), file=responses, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        response = getattr(worker, request.pop("method"))(**request)
        print(json.dumps(response), file=responses, flush=True)


def _pin_to_cores(n_cores: int | None) -> None:
    """Pin this process to `n_cores` cores, before a framework sizes its thread pool."""
    if n_cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:n_cores])


def _private_stdout() -> TextIO:
    """Return standard output for responses; other prints in this process go to stderr."""
    # The file descriptor is redirected, not sys.stdout: XLA and PyTorch write to it from C++.
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return responses
