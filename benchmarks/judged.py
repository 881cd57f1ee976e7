"""The submission that the judge is timed with: right answers to one problem, on four meshes."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import shardlab
from shardlab.catalogue.problem import Problem, load_problem
from shardlab.judge.judge import judge
from shardlab.judge.protocol.requests import parse_request
from shardlab.sandbox.frame import Frame
from shardlab.sandbox.process import Level, ProcessLimits, SandboxPool

_FOLDER = (
    Path(shardlab.__file__).parent / "catalogue" / "problems" / "c-collectives" / "shard-map-psum"
)
MESHES = ("data=1", "data=2", "data=4", "data=8")


def four_meshes() -> Problem:
    """Return the problem with its second part alone, on four real meshes."""
    problem = load_problem(_FOLDER)
    part = dataclasses.replace(problem.parts[1], ladder=MESHES, large=())
    return dataclasses.replace(problem, parts=(problem.parts[0], part))


def submit(house: SandboxPool, number: int) -> None:
    """Judge a right answer, a little different for each number; fail where it does not pass."""
    problem = four_meshes()
    source = f"{problem.text('solution.py')}\n\nNUMBER = {number}\n"
    only = dataclasses.replace(problem, parts=(_nowhere(problem), problem.parts[1]))
    judgement = judge(house, only, source, kind="submit", seed=number)
    if not judgement.passed or len(judgement.cases) != len(MESHES):
        raise AssertionError(f"the right answer did not pass: {judgement.verdict}")


def _nowhere(problem: Problem) -> Any:
    """Return the first part without a case: parts are found by their number."""
    return dataclasses.replace(problem.parts[0], kind="value", cases=0)


class OneProcess:
    """Guests in this very process, one question at a time: the cheapest cold judge there is."""

    level: Level = "C"

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def start_process(self, role: str, limits: ProcessLimits) -> Any:
        return _Here(role, self._lock)

    def close(self) -> None:
        pass


class _Here:
    output = ""

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
    submit(OneProcess(), 1)
