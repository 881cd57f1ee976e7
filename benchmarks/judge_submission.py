"""The submission that the judge is timed with: a reference solution on four meshes.

`python -m benchmarks.judge_submission` judges it once, in this process: the cold judge.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

from shardlab.catalogue.problem import Problem, load_problem
from shardlab.catalogue.tracks import BUILT_IN_CATALOGUE
from shardlab.judge.judge import judge
from shardlab.judge.protocol.requests import parse_request
from shardlab.sandbox.frame import Frame
from shardlab.sandbox.process import Level, ProcessLimits, SandboxPool

_FOLDER = BUILT_IN_CATALOGUE / "c-collectives" / "shard-map-psum"
MESHES = ("data=1", "data=2", "data=4", "data=8")


def problem_on_four_meshes() -> Problem:
    """Return the problem with cases of its second part only, on four real meshes."""
    problem = load_problem(_FOLDER)
    # Parts are identified by their number, so the first one stays, with no cases.
    first = dataclasses.replace(problem.parts[0], kind="value", cases=0)
    second = dataclasses.replace(problem.parts[1], meshes=MESHES, simulated_meshes=())
    return dataclasses.replace(problem, parts=(first, second))


def judge_correct_submission(pool: SandboxPool, number: int) -> None:
    """Judge a correct submission, different for each number; raise if it does not pass."""
    problem = problem_on_four_meshes()
    source = f"{problem.read_text('solution.py')}\n\nNUMBER = {number}\n"
    judgement = judge(pool, problem, source, kind="submit", seed=number)
    if not judgement.passed or len(judgement.cases) != len(MESHES):
        raise AssertionError(f"the correct submission did not pass: {judgement.verdict}")


class InProcessPool:
    """Tracer and runner in this process, one request at a time: the cheapest cold judge."""

    level: Level = "C"
    confinement = ""

    def __init__(self) -> None:
        # The judge sends to tracer and runner from two threads; JAX's config is process-wide.
        self._lock = threading.Lock()

    def start_process(self, role: str, limits: ProcessLimits) -> Any:
        return _InProcessWorker(role, self._lock)

    def close(self) -> None:
        pass


class _InProcessWorker:
    output = ""
    cpu_seconds = 0.0
    rejected_calls: Mapping[str, int] = {}

    def __init__(self, role: str, lock: threading.Lock) -> None:
        from shardlab.judge.worker.runner import Runner
        from shardlab.judge.worker.tracer import Tracer

        self._worker = Tracer() if role == "tracer" else Runner()
        self._lock = lock

    def request(self, frame: Frame) -> Frame:
        with self._lock:
            return self._worker.handle_request(parse_request(frame).request).to_frame()

    def close(self) -> None:
        pass


if __name__ == "__main__":
    judge_correct_submission(InProcessPool(), 1)
