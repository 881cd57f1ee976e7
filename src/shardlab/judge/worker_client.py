"""A place where one kind of process answers: a fresh one takes the seat of one that has ended."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

from shardlab.errors import LabError
from shardlab.judge import failures as troubles
from shardlab.judge.protocol.messages import checked
from shardlab.judge.source import SubmissionSource
from shardlab.judge.verdict import Verdict
from shardlab.sandbox.frame import Frame, InvalidFrame
from shardlab.sandbox.process import (
    ExitReason,
    Limits,
    ProcessEnded,
    Role,
    SandboxedProcess,
    SandboxPool,
)

# What a process is at when it is asked, for the words about one that ended.
DOING = {
    "load": "importing the answer",
    "export": "tracing the answer",
    "simulate": "simulating the answer",
    "call": "calling the answer",
    "run": "running the program",
}
_SHARE_OF_TIME = 0.8
_MOST_ENDINGS = 3  # of processes; an answer that ends more of them is not judged further


class NotLoaded(Exception):
    """The answer cannot be executed."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.what)
        self.verdict = verdict


class Lost(Exception):
    """A question was not answered; `verdict` says why."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.what)
        self.verdict = verdict


class Desk:
    """Asks guests of one role, one at a time, and replaces those that end."""

    def __init__(
        self, house: SandboxPool, role: Role, limits: Limits, source: SubmissionSource | None = None
    ) -> None:
        self._house, self._role, self._limits, self._source = house, role, limits, source
        self._guest: SandboxedProcess | None = None
        self._n_ended = 0
        self._n_heard = 0
        self._busy = 0.0
        self.is_given_up = False
        self.printed = ""  # since the question before this one

    def prepare(self) -> None:
        """Have a guest started, to be ready when it is asked; whatever is wrong is told then."""
        with contextlib.suppress(ProcessEnded, NotLoaded):
            self._seated()

    def ask(self, request: Frame) -> Frame:
        """Return the answer. Raises `Lost` or `NotLoaded`.

        A process that ended through no fault of the answer is replaced and asked once more.
        """
        doing = DOING[request.header["do"]]
        try:
            return self._asked(request)
        except ProcessEnded as ended:
            if not troubles.is_worth_retrying(ended.ending):
                raise self._lost(ended, doing) from None
            self._leave()
        try:
            return self._asked(request)
        except ProcessEnded as ended:
            raise self._lost(ended, doing) from None

    def _asked(self, request: Frame) -> Frame:
        guest = self._seated()
        answer = _held(self._timed(guest, request))
        self._hear(guest)
        self.printed, _ = troubles.last_words(self.printed)  # they were not the last
        return answer

    def _timed(self, guest: SandboxedProcess, request: Frame) -> Frame:
        """Ask, and let the guest know when to say where it is: before its time can be up.

        On a busy machine, and in a long compilation, it goes on after that; see `_hear`.
        """
        left = min(self._limits.wall_seconds, self._limits.cpu_seconds) - self._busy
        left = min(left, self._limits.idle_seconds)
        patience = round(max(left, 1.0) * _SHARE_OF_TIME, 1)
        started = time.monotonic()
        try:
            return guest.ask(Frame({**request.header, "patience": patience}, request.buffers))
        finally:
            self._busy += time.monotonic() - started

    def _hear(self, guest: SandboxedProcess) -> None:
        said = guest.output
        self.printed, self._n_heard = said[self._n_heard :], len(said)

    def _lost(self, ended: ProcessEnded, doing: str) -> Lost:
        self.printed, said = "", ""
        if self._guest is not None:
            self._hear(self._guest)
            self.printed, said = troubles.last_words(self.printed)
        self._leave()
        self._n_ended += 1
        place = self._source.place(troubles.last_line(said)) if self._source else ""
        verdict = replace(troubles.ended(ended.ending, doing, said), where=place)
        # A second wait for the same limit would tell nothing new.
        is_final = verdict.code in ("TLE", "HANG", "IE")
        self.is_given_up = is_final or self._n_ended >= _MOST_ENDINGS
        return Lost(verdict)

    def _seated(self) -> SandboxedProcess:
        if self._guest is not None:
            return self._guest
        try:
            self._guest = self._house.guest(self._role, self._limits)
        except (OSError, LabError) as error:
            raise ProcessEnded(ExitReason(why="house", detail=str(error))) from error
        if self._source is not None:
            try:
                self._load(self._guest, self._source)
            except ProcessEnded as ended:
                if troubles.is_worth_retrying(ended.ending):
                    raise
                raise NotLoaded(self._lost(ended, DOING["load"]).verdict) from None
        return self._guest

    def _load(self, guest: SandboxedProcess, source: SubmissionSource) -> None:
        request = Frame({"do": "load"}, (source.text.encode(),))
        answer = _held(self._timed(guest, request))
        if "error" in answer.header:
            raise NotLoaded(troubles.not_loaded(answer.header["error"], source))

    def _leave(self) -> None:
        if self._guest is not None:
            self._guest.close()
            self._guest, self._n_heard, self._busy = None, 0, 0.0

    def close(self) -> None:
        """Let the guest go."""
        self._leave()


def _held(answer: Frame) -> Frame:
    """Return an answer of the shape that answers have; any other ends its process's say."""
    try:
        return checked(answer)
    except InvalidFrame as error:
        raise ProcessEnded(ExitReason(why="frame", detail=str(error))) from error
