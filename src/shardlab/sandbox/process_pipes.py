"""One guest at the other end of three pipes, and its supervisor at the end of a socket."""

from __future__ import annotations

import contextlib
import json
import os
import select
import threading
import time
from collections.abc import Callable, Sequence

from shardlab.sandbox.frame import Frame, InvalidFrame, frame_bytes, frame_lengths, parse_frame
from shardlab.sandbox.process import ExitReason, Limits, ProcessEnded

_START_BYTES = 8
_CHUNK = 1 << 16
_GRACE = 5.0  # for a supervisor to end a guest and say so, on a busy machine

# What is printed may be shown in a terminal, which must not take orders from it.
_UNCONTROLLED = {n: "\ufffd" for n in (*range(32), 127, *range(128, 160)) if chr(n) not in "\t\n"}


class PipedProcess:
    """A confined process. One request at a time; whatever it sends is checked before it is used."""

    def __init__(self, fds: Sequence[int], limits: Limits) -> None:
        self._requests, self._answers, self._printed, self._told = fds
        for fd in fds:
            os.set_blocking(fd, False)
        self._limits = limits
        self._output = b""
        self._n_printed = 0
        self._report = b""
        self._ending: ExitReason | None = None
        self._busy = 0.0
        self._is_closed = False
        self._lock = threading.Lock()
        self.when_closed: Callable[[], None] = lambda: None

    def ask(self, request: Frame) -> Frame:
        """Send a request and return its answer. Raises `ProcessEnded`."""
        with self._lock:
            if self._ending or self._is_closed:
                raise ProcessEnded(
                    self._ending or ExitReason(why="exit", detail="the process was ended")
                )
            self._tell(b"b")
            started = time.monotonic()
            try:
                return self._exchange(frame_bytes(request), started)
            finally:
                self._busy += time.monotonic() - started
                self._tell(b"i")

    @property
    def output(self) -> str:
        """What the process has printed so far, cut at the limit, without control characters."""
        with self._lock:
            if not self._is_closed:
                self._drain()
            return self._output.decode("utf-8", "replace").translate(_UNCONTROLLED)

    def close(self) -> None:
        """End the process and all it started: its supervisor sees that nobody listens."""
        with self._lock:
            if self._is_closed:
                return
            self._drain()
            self._is_closed = True
            for fd in (self._requests, self._answers, self._printed, self._told):
                os.close(fd)
        self.when_closed()

    def has_ended(self) -> bool:
        """Return whether the process has ended before anything was asked of it."""
        return _has_data(self._told)

    def __enter__(self) -> PipedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ----------------------------------------------------------------------- one request

    def _exchange(self, data: bytes, started: float) -> Frame:
        """Write a request while reading all that comes, until the answer is whole."""
        rest, answer = memoryview(data), bytearray()
        deadline = started + self._limits.wall_seconds - self._busy + _GRACE
        if _has_data(self._answers):
            self._end(b"f", "it spoke before it was asked")
        while True:
            ready = self._wait(rest, deadline)
            self._drain()
            if self._n_printed > self._limits.output_bytes:
                self._end(b"o", f"more than {self._limits.output_bytes} bytes")
            if self._requests in ready:
                rest = self._written(rest)
            if self._answers in ready:
                frame = self._read_some(answer)
                if frame:
                    return frame
            elif self._told in ready:  # it has ended, and all that it said before has been read
                self._hear(0)

    def _wait(self, rest: memoryview, deadline: float) -> set[int]:
        poll = select.poll()
        for fd in (self._answers, self._printed, self._told):
            poll.register(fd, select.POLLIN)
        if rest:
            poll.register(self._requests, select.POLLOUT)
        left = deadline - time.monotonic()
        ready = {fd for fd, _ in poll.poll(max(left, 0) * 1000)}
        if not ready:
            # The supervisor should have done it. It is stopped, or starved.
            self._end(b"t", "")
        return ready

    def _written(self, rest: memoryview) -> memoryview:
        try:
            return rest[os.write(self._requests, rest) :]
        except BlockingIOError:
            return rest
        except BrokenPipeError:
            self._end(b"c", "it closed its requests")
            raise

    def _read_some(self, answer: bytearray) -> Frame | None:
        """Return the answer once it is whole; refuse it as soon as it cannot be one."""
        wanted = _START_BYTES - len(answer)
        try:
            if wanted <= 0:
                lengths = frame_lengths(bytes(answer[:_START_BYTES]), self._limits.answer_bytes)
                wanted = _START_BYTES + sum(lengths) - len(answer)
            chunk = os.read(self._answers, min(wanted, _CHUNK)) if wanted else b""
            if wanted and not chunk:
                self._end(b"c", "it closed its answers")
            answer += chunk
            if len(answer) < _START_BYTES:
                return None
            lengths = frame_lengths(bytes(answer[:_START_BYTES]), self._limits.answer_bytes)
            if len(answer) < _START_BYTES + sum(lengths):
                return None
            return parse_frame(bytes(answer), self._limits.answer_bytes)
        except BlockingIOError:
            return None
        except InvalidFrame as error:
            self._end(b"f", str(error))
            raise

    def _drain(self) -> None:
        """Take what was printed; keep as much as the limit allows."""
        with contextlib.suppress(BlockingIOError):
            while self._n_printed <= self._limits.output_bytes:
                chunk = os.read(self._printed, _CHUNK)
                if not chunk:
                    return
                self._n_printed += len(chunk)
                self._output = (self._output + chunk)[: self._limits.output_bytes]

    # ------------------------------------------------------------------------ the supervisor

    def _tell(self, command: bytes) -> None:
        with contextlib.suppress(OSError):  # it is gone, and has said why
            os.write(self._told, command)

    def _end(self, command: bytes, detail: str) -> None:
        """Have the guest ended, unless it ended by itself; raise what the supervisor says."""
        if command == b"c":
            self._hear(0.5, may_pass=True)  # a process that exits closes its pipes first
        self._tell(command)
        self._hear(_GRACE, detail)

    def _hear(self, patience: float, detail: str = "", *, may_pass: bool = False) -> None:
        """Read the supervisor's report and raise it."""
        until = time.monotonic() + patience
        while True:
            poll = select.poll()
            poll.register(self._told, select.POLLIN)
            if not poll.poll(max(until - time.monotonic(), 0) * 1000):
                if may_pass:
                    return
                self._raise(ExitReason(why="judge", detail="the supervisor does not answer"))
            try:
                chunk = os.read(self._told, _CHUNK)
            except ConnectionError:
                chunk = b""
            self._report += chunk
            if not chunk:
                break
            until = time.monotonic() + _GRACE  # it has begun: it will finish
        self._drain()
        self._raise(_ending(self._report, detail))

    def _raise(self, ending: ExitReason) -> None:
        self._ending = ending
        raise ProcessEnded(ending)


def _ending(report: bytes, detail: str) -> ExitReason:
    """Return what a supervisor has reported. One that is gone without a word was killed."""
    if not report:
        return ExitReason(why="judge", detail="the supervisor was killed")
    told = json.loads(report)
    told["detail"] = told["detail"] or (detail if told["why"] in ("frame", "output") else "")
    return ExitReason(**told)


def _has_data(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(0))
