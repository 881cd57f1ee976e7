"""Judging beside the screen: the house opens while a person reads, answers are judged in threads.

A judging that is given up ends by itself, at its next case; nobody waits for it, so that the next
answer is judged at once also where the last one runs into its time limit.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from shardlab.catalogue.problem import Problem
from shardlab.course.attempt import explain_rejected_submission, judge_submission, record_submission
from shardlab.course.store import Record
from shardlab.course.submission import Submission
from shardlab.errors import LabError
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.sandbox.process import SandboxPool


@dataclass(frozen=True)
class JudgeEvent:
    """One piece of news: a case that ended, the whole judgement, or why there is none."""

    case: CaseResult | None = None
    judgement: Judgement | None = None
    failure: str = ""


class _GivenUp(Exception):
    """Ends a judging that nobody wants any more."""


class BackgroundJudge:
    """Judges one answer at a time, as the screen sees it."""

    def __init__(
        self, record: Record, open_house: Callable[[], SandboxPool], wake: Callable[[], None]
    ) -> None:
        self._record = record
        self._open_house = open_house
        self._wake = wake
        self._house: SandboxPool | None = None
        self._failure: Exception | None = None
        self._is_open = threading.Event()
        self._wanted: object = None  # of the judging whose news are told
        self._news: queue.SimpleQueue[tuple[object, JudgeEvent]] = queue.SimpleQueue()
        threading.Thread(target=self._open, daemon=True).start()

    def judge(self, problem: Problem, source: bytes, kind: str) -> None:
        """Keep an answer and begin to judge it; one that is being judged is given up."""
        self._wanted = token = object()
        refusal = explain_rejected_submission(self._record, problem, source, kind=kind)
        if refusal is not None:
            self._say(token, JudgeEvent(judgement=refusal))
            return
        submission = record_submission(self._record, problem, source, kind=kind)
        threading.Thread(target=self._judge, args=(token, problem, submission), daemon=True).start()

    def give_up(self) -> None:
        self._wanted = None

    def news(self) -> list[JudgeEvent]:
        """Return what has happened since, of the judging that is wanted."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                token, told = self._news.get_nowait()
                if token is self._wanted:
                    found.append(told)
        return found

    def close(self) -> None:
        """Give up, and close the house; one that is still being opened closes itself."""
        self._wanted = None
        self._open_house = _closed
        if self._house is not None:
            self._house.close()

    def _open(self) -> None:
        try:
            house = self._open_house()
        except Exception as error:
            self._failure = error
        else:
            self._house = house
            if self._open_house is _closed:
                house.close()
        self._is_open.set()

    def _judge(self, token: object, problem: Problem, submission: Submission) -> None:
        def tell(case: CaseResult) -> None:
            if token is not self._wanted:
                raise _GivenUp
            self._say(token, JudgeEvent(case=case))

        self._is_open.wait()
        if token is not self._wanted:
            return
        try:
            if self._house is None:
                raise self._failure or _GivenUp
            judgement = judge_submission(self._record, self._house, problem, submission, tell)
        except _GivenUp:
            return
        except LabError as error:
            self._say(token, JudgeEvent(failure=str(error)))
        except Exception as error:  # the judge's own fault: said, and the screen goes on
            self._say(
                token, JudgeEvent(failure=f"The judge failed: {type(error).__name__}: {error}")
            )
        else:
            self._say(token, JudgeEvent(judgement=judgement))

    def _say(self, token: object, told: JudgeEvent) -> None:
        self._news.put((token, told))
        self._wake()


def _closed() -> SandboxPool:
    raise _GivenUp
