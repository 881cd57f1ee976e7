"""Judges submissions in background threads, while `learn` keeps reading keys.

The sandbox pool opens while the user reads the task. Cancelling a judgement ends its processes at
once, and the next one starts only then: however often a file is saved, one submission is judged at
a time, and those that were replaced before their turn start no process.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from shardlab.catalogue.problem import Problem
from shardlab.course.attempt import explain_rejected_submission, judge_submission, record_submission
from shardlab.course.cancellable_pool import CancellablePool
from shardlab.course.store import PracticeStore, Submission
from shardlab.errors import LabError
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.sandbox.process import SandboxPool


@dataclass(frozen=True)
class JudgeEvent:
    """A finished case, the judgement, or the reason why there is none."""

    case: CaseResult | None = None
    judgement: Judgement | None = None
    failure: str = ""


class _Cancelled(Exception):
    """Ends a judgement whose result is no longer needed."""


class BackgroundJudge:
    """Judges one submission at a time, as seen from the screen's thread."""

    def __init__(
        self, store: PracticeStore, open_pool: Callable[[], SandboxPool], wake: Callable[[], None]
    ) -> None:
        self._store = store
        self._open_pool = open_pool
        self._wake = wake
        self._pool: SandboxPool | None = None
        self._failure: Exception | None = None
        self._is_open = threading.Event()
        # Identifies the current submission; threads with another token are cancelled.
        self._current: object = None
        self._running: CancellablePool | None = None
        self._turn = threading.Lock()  # of the thread that may start processes
        self._events: queue.SimpleQueue[tuple[object, JudgeEvent]] = queue.SimpleQueue()
        # A daemon, as all threads here: quitting must not be delayed until JAX is loaded.
        threading.Thread(target=self._open_in_thread, daemon=True).start()

    def start_judging(self, problem: Problem, source: bytes, kind: str) -> None:
        """Store a submission and begin to judge it; cancel the one before."""
        self.cancel()
        self._current = token = object()
        # In this thread: it needs no sandbox, so it works while the pool still opens.
        rejection = explain_rejected_submission(self._store, problem, source, kind=kind)
        if rejection is not None:
            self._send_event(token, JudgeEvent(judgement=rejection))
            return
        submission = record_submission(self._store, problem, source, kind=kind)
        arguments = (token, problem, submission, source)
        threading.Thread(target=self._judge_in_thread, args=arguments, daemon=True).start()

    def cancel(self) -> None:
        """Drop the current judgement, and end its processes."""
        self._current = None
        running = self._running
        if running is not None:
            running.cancel()

    def take_events(self) -> list[JudgeEvent]:
        """Return the new events of the current submission."""
        events = []
        with contextlib.suppress(queue.Empty):
            while True:
                token, event = self._events.get_nowait()
                if token is self._current:
                    events.append(event)
        return events

    def close(self) -> None:
        """Cancel, and close the pool; one that is still opening closes itself."""
        self.cancel()
        self._open_pool = _reject_opening
        if self._pool is not None:
            self._pool.close()

    def _open_in_thread(self) -> None:
        try:
            pool = self._open_pool()
        except Exception as error:
            self._failure = error
        else:
            self._pool = pool
            if self._open_pool is _reject_opening:  # closed meanwhile
                pool.close()
        self._is_open.set()

    def _judge_in_thread(
        self, token: object, problem: Problem, submission: Submission, source: bytes
    ) -> None:
        def report_case(case: CaseResult) -> None:
            if token is not self._current:
                raise _Cancelled
            self._send_event(token, JudgeEvent(case=case))

        self._is_open.wait()
        try:
            with self._turn:
                pool = self._take_pool(token)
                judgement = judge_submission(
                    self._store, pool, problem, submission, report_case, source=source
                )
        except _Cancelled:
            return
        except LabError as error:
            self._send_event(token, JudgeEvent(failure=str(error)))
        except Exception as error:  # a bug of the judge must not end the screen
            failure = f"The judge failed: {type(error).__name__}: {error}"
            self._send_event(token, JudgeEvent(failure=failure))
        else:
            self._send_event(token, JudgeEvent(judgement=judgement))

    def _take_pool(self, token: object) -> CancellablePool:
        """Return a pool for one judgement, unless it was cancelled before its turn."""
        if self._pool is None:
            raise self._failure or _Cancelled
        self._running = pool = CancellablePool(self._pool, _Cancelled)
        # After the assignment: a `cancel` before it found nothing to end.
        if token is not self._current:
            raise _Cancelled
        return pool

    def _send_event(self, token: object, event: JudgeEvent) -> None:
        self._events.put((token, event))
        self._wake()


def _reject_opening() -> SandboxPool:
    raise _Cancelled
