"""Computes plans in a few processes, each plan with a time limit.

A thread of the web process cannot be ended, and computes at the cost of every other request. A
process is ended when its time is over, and the next plan starts another.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from starlette.exceptions import HTTPException
from starlette.requests import Request

from shardlab.errors import PlanTimeout
from shardlab.execution.messages import Failure

PlanKind = Literal["plan", "plan_page", "check_advice"]

# A plan of a preset takes 10 ms to 0.5 s, one of 100,000 uploaded tensors with rules some seconds.
PLAN_SECONDS = 10.0
_START_SECONDS = 60.0  # for a new process on a busy machine, before its plan begins
_WAIT_SECONDS = 5.0
_MAX_PROCESSES = 2
# Each request that waits holds a thread of the web process, which has 40 for all requests.
_MAX_WAITING = 8
_MAX_OF_PERSON = 4  # that wait or run


class PlanPool:
    """Starts processes when they are needed, and uses each for many plans."""

    def __init__(self, *, plan_seconds: float = PLAN_SECONDS) -> None:
        self._plan_seconds = plan_seconds
        self._changed = threading.Condition()
        self._idle: list[_PlanProcess] = []
        self._n_running = 0
        self._n_waiting = 0
        self._n_of_person: Counter[int] = Counter()
        self._is_closed = False

    def request(self, person: int, kind: PlanKind, payload: dict[str, Any]) -> dict[str, Any]:
        """Return the result of one piece of work.

        Raises what the planner raises, `PlanTimeout`, and 429 or 503 if too many plans wait.
        """
        with self._slot(person):
            process = self._take_process()
            try:
                answer = process.request(kind, payload, self._plan_seconds)
            except BaseException:
                process.end()
                raise
            self._put_back(process)
        if "failure" in answer:
            raise Failure.from_json(answer["failure"]).to_error()
        result: dict[str, Any] = answer["result"]
        return result

    def close(self) -> None:
        """End the processes; one that computes ends when its request does."""
        with self._changed:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()

    @contextlib.contextmanager
    def _slot(self, person: int) -> Iterator[None]:
        """Wait until fewer than the most plans are computed."""
        with self._changed:
            if self._n_of_person[person] >= _MAX_OF_PERSON:
                message = (
                    f"{_MAX_OF_PERSON} of your plans are being computed. Wait for one of them."
                )
                raise HTTPException(429, message, headers={"retry-after": "5"})
            is_full = self._n_running >= _MAX_PROCESSES
            if is_full and self._n_waiting >= _MAX_WAITING:
                raise _busy()
            self._n_of_person[person] += 1
            self._n_waiting += 1
            try:
                if not self._changed.wait_for(
                    lambda: self._n_running < _MAX_PROCESSES, _WAIT_SECONDS
                ):
                    self._forget(person)
                    raise _busy()
                self._n_running += 1
            finally:
                self._n_waiting -= 1
        try:
            yield
        finally:
            with self._changed:
                self._n_running -= 1
                self._forget(person)
                self._changed.notify()

    def _forget(self, person: int) -> None:
        self._n_of_person[person] -= 1
        if not self._n_of_person[person]:
            del self._n_of_person[person]

    def _take_process(self) -> _PlanProcess:
        with self._changed:
            while self._idle:
                process = self._idle.pop()
                if process.is_alive:
                    return process
                process.end()
        return _PlanProcess()

    def _put_back(self, process: _PlanProcess) -> None:
        with self._changed:
            if not self._is_closed:
                self._idle.append(process)
                return
        process.end()


class _PlanProcess:
    """One process; used by one thread at a time."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "shardlab.server.planning.plan_process"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._is_new = True

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def request(self, kind: PlanKind, payload: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer. Raises `PlanTimeout`, and `RuntimeError` if the process ends."""
        if self._is_new:
            # The limit is for the plan, not for the imports of a process that has just started.
            self._read_line(b"", _START_SECONDS)
            self._is_new = False
        line, is_too_late = self._read_line(
            json.dumps({"kind": kind, "payload": payload}).encode() + b"\n", seconds
        )
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        if is_too_late:
            raise PlanTimeout(
                f"The plan took more than {seconds:g} s and was stopped.",
                fix="fewer tensors, simpler patterns or a mesh with fewer axes; `shardlab plan` on "
                "the command line has no limit.",
            )
        raise RuntimeError(f"a planner process ended with {self._process.wait()}")

    def _read_line(self, request: bytes, seconds: float) -> tuple[bytes, bool]:
        """Return the next line, and whether there is none because the time was over."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        end = time.monotonic() + seconds
        # A pipe has no read with a time limit on all systems: the end of the process ends the read.
        timer = threading.Timer(seconds, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(request)
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        finally:
            timer.cancel()
        is_complete = line.endswith(b"\n")
        return line if is_complete else b"", not is_complete and time.monotonic() >= end

    def end(self) -> None:
        """End the process and close its pipes."""
        self._process.kill()
        with contextlib.suppress(BrokenPipeError):  # what was not sent yet
            self._process.__exit__(None, None, None)


def _busy() -> HTTPException:
    return HTTPException(503, "Many plans are being computed.", headers={"retry-after": "5"})


def plan_pool(request: Request) -> PlanPool:
    """Return the planner processes of this application."""
    pool: PlanPool = request.app.state.plans
    return pool
