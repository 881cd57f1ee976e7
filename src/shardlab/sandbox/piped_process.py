"""The client's end of one sandboxed process: three pipes to it, and a socket to its supervisor.

What the supervisor measures is in a usage record, which the client can read at any time.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from shardlab.sandbox.frame import Frame, InvalidFrame, frame_bytes, frame_lengths, parse_frame
from shardlab.sandbox.messages import SupervisorCommand, parse_exit_report
from shardlab.sandbox.process import ExitReason, ProcessEnded, ProcessLimits
from shardlab.sandbox.system_call_names import system_call_name
from shardlab.sandbox.usage_record import ProcessUsage, read_usage

_PREFIX_BYTES = 8
_CHUNK_BYTES = 1 << 16
# For a supervisor to end its process and report it. Usually that takes milliseconds, but on a busy
# machine it may not be scheduled for seconds.
_GRACE_SECONDS = 30.0
_BUDGET_SECONDS = 0.1  # between two looks at the budget

# Output is shown in terminals, which must not interpret control characters in it.
_CONTROL_CHARACTERS = {
    code: "\ufffd" for code in (*range(32), 127, *range(128, 160)) if chr(code) not in "\t\n"
}


class PipedProcess:
    """A sandboxed process. One request at a time; what it sends is checked before it is used."""

    def __init__(self, fds: Sequence[int], limits: ProcessLimits) -> None:
        self._requests_fd, self._responses_fd, self._output_fd, self._supervisor_fd = fds[:4]
        self._usage_fd, self._last_usage = fds[4], ProcessUsage()
        for fd in fds[:4]:
            os.set_blocking(fd, False)
        # A second descriptor of the same socket: `abort` uses it while a request has the lock.
        self._abort_socket = socket.fromfd(self._supervisor_fd, socket.AF_UNIX, socket.SOCK_STREAM)
        self._limits = limits
        self._output = b""
        self._n_output = 0
        self._report = b""
        self._exit_reason: ExitReason | None = None
        self._busy_seconds = 0.0
        self._exceeded_budget = ""  # the limit of the client's own for which it was ended
        self._is_closed = False
        self._lock, self._usage_lock = threading.Lock(), threading.Lock()
        self.on_close: Callable[[], None] = lambda: None
        self.on_lost: Callable[[], None] = lambda: None
        self.find_exceeded_budget: Callable[[], str] = lambda: ""

    def request(self, frame: Frame) -> Frame:
        """Send a request and return its response. Raises `ProcessEnded`."""
        with self._lock:
            if self._exit_reason or self._is_closed:
                reason = ExitReason(kind="exit", detail="the process was ended")
                raise ProcessEnded(self._exit_reason or reason)
            self._send_command(SupervisorCommand.REQUEST_STARTED)
            started = time.monotonic()
            try:
                return self._exchange_frames(frame_bytes(frame), started)
            finally:
                self._busy_seconds += time.monotonic() - started
                self._send_command(SupervisorCommand.REQUEST_FINISHED)

    @property
    def output(self) -> str:
        """What the process has printed so far, truncated, without control characters."""
        with self._lock:
            if not self._is_closed:
                self._drain_output()
            return self._output.decode("utf-8", "replace").translate(_CONTROL_CHARACTERS)

    @property
    def cpu_seconds(self) -> float:
        """The processor time so far; up to a fiftieth of a second behind."""
        return self._read_usage().cpu_seconds

    @property
    def rejected_calls(self) -> Mapping[str, int]:
        """The system calls that the filter has rejected, by name."""
        calls = self._read_usage().rejected_calls
        return {system_call_name(number): count for number, count in calls.items()}

    def _read_usage(self) -> ProcessUsage:
        with self._usage_lock:  # of its own: another thread asks while a request is pending
            return self._last_usage if self._is_closed else read_usage(self._usage_fd)

    def close(self) -> None:
        """End the process and everything it started: its supervisor sees the closed socket."""
        with self._lock, self._usage_lock:
            if self._is_closed:
                return
            self._drain_output()
            self._last_usage = read_usage(self._usage_fd)
            self._is_closed = True
            for fd in (
                self._requests_fd,
                self._responses_fd,
                self._output_fd,
                self._supervisor_fd,
                self._usage_fd,
            ):
                os.close(fd)
            self._abort_socket.close()
        self.on_close()

    def abort(self) -> None:
        """End the process from another thread; a pending request raises `ProcessEnded`."""
        with contextlib.suppress(OSError):  # it has ended, or was closed meanwhile
            self._abort_socket.shutdown(socket.SHUT_RDWR)

    def has_ended(self) -> bool:
        """Return whether the process has ended before its first request."""
        return _has_data(self._supervisor_fd)

    def __enter__(self) -> PipedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------ one request

    def _exchange_frames(self, data: bytes, started: float) -> Frame:
        """Write a request while reading everything that arrives, until the response is complete.

        Both at once: a process that prints, or responds before it has read its request, would
        otherwise block on a full pipe while we block on another.
        """
        unsent, response = memoryview(data), bytearray()
        deadline = started + self._limits.wall_seconds - self._busy_seconds + _GRACE_SECONDS
        if _has_data(self._responses_fd):
            self._end_process(
                SupervisorCommand.END_FOR_PROTOCOL, "a response came before its request"
            )
        while True:
            ready = self._wait_for_events(unsent, deadline)
            self._drain_output()
            if self._n_output > self._limits.output_bytes:
                detail = f"more than {self._limits.output_bytes} bytes"
                self._end_process(SupervisorCommand.END_FOR_OUTPUT, detail)
            if self._requests_fd in ready:
                unsent = self._write_some(unsent)
            if self._responses_fd in ready:
                frame = self._read_some(response)
                if frame:
                    return frame
            elif self._supervisor_fd in ready:
                # Only now: a process may respond and end at once, and its response counts.
                self._raise_exit_report(0)

    def _wait_for_events(self, unsent: memoryview, deadline: float) -> set[int]:
        poll = select.poll()
        for fd in (self._responses_fd, self._output_fd, self._supervisor_fd):
            poll.register(fd, select.POLLIN)
        if unsent:
            poll.register(self._requests_fd, select.POLLOUT)
        while True:
            remaining = max(deadline - time.monotonic(), 0)
            ready = {fd for fd, _ in poll.poll(min(remaining, _BUDGET_SECONDS) * 1000)}
            if ready:
                return ready
            if not remaining:
                # The supervisor should have ended the process by now. It is stopped, or starved.
                self._end_process(SupervisorCommand.END_FOR_TIME)
            exceeded = self.find_exceeded_budget()
            if exceeded:
                self._exceeded_budget = exceeded
                self._end_process(SupervisorCommand.END_FOR_TIME)

    def _write_some(self, unsent: memoryview) -> memoryview:
        try:
            return unsent[os.write(self._requests_fd, unsent) :]
        except BlockingIOError:
            return unsent
        except BrokenPipeError:
            self._end_process(SupervisorCommand.END_FOR_CLOSED_PIPE, "the request pipe was closed")

    def _read_some(self, response: bytearray) -> Frame | None:
        """Return the response once it is complete; reject it as soon as it cannot be valid."""
        n_missing, max_body = _PREFIX_BYTES - len(response), self._limits.response_bytes
        try:
            if n_missing <= 0:
                lengths = frame_lengths(bytes(response[:_PREFIX_BYTES]), max_body)
                n_missing = _PREFIX_BYTES + sum(lengths) - len(response)
            chunk = os.read(self._responses_fd, min(n_missing, _CHUNK_BYTES)) if n_missing else b""
            if n_missing and not chunk:
                self._end_process(
                    SupervisorCommand.END_FOR_CLOSED_PIPE, "the response pipe was closed"
                )
            response += chunk
            if len(response) < _PREFIX_BYTES:
                return None
            lengths = frame_lengths(bytes(response[:_PREFIX_BYTES]), max_body)
            if len(response) < _PREFIX_BYTES + sum(lengths):
                return None
            return parse_frame(bytes(response), max_body)
        except BlockingIOError:
            return None
        except InvalidFrame as error:
            self._end_process(SupervisorCommand.END_FOR_PROTOCOL, str(error))

    def _drain_output(self) -> None:
        """Read what was printed; keep as much as the limit allows."""
        with contextlib.suppress(BlockingIOError):
            while self._n_output <= self._limits.output_bytes:
                chunk = os.read(self._output_fd, _CHUNK_BYTES)
                if not chunk:
                    return
                self._n_output += len(chunk)
                self._output = (self._output + chunk)[: self._limits.output_bytes]

    # --------------------------------------------------------------------------- the supervisor

    def _send_command(self, command: SupervisorCommand) -> None:
        with contextlib.suppress(OSError):  # it is gone; its report says why
            os.write(self._supervisor_fd, command.value)

    def _end_process(self, command: SupervisorCommand, detail: str = "") -> NoReturn:
        """Have the process ended, unless it has ended by itself; raise what is reported."""
        self._send_command(command)
        self._raise_exit_report(_GRACE_SECONDS, detail)

    def _raise_exit_report(self, patience: float, detail: str = "") -> NoReturn:
        deadline = time.monotonic() + patience
        while True:
            poll = select.poll()
            poll.register(self._supervisor_fd, select.POLLIN)
            if not poll.poll(max(deadline - time.monotonic(), 0) * 1000):
                self._raise_ended(
                    ExitReason(kind="internal", detail="the supervisor does not respond")
                )
            try:
                chunk = os.read(self._supervisor_fd, _CHUNK_BYTES)
            except ConnectionError:
                chunk = b""
            self._report += chunk
            if not chunk:
                break
            deadline = time.monotonic() + _GRACE_SECONDS  # the report has begun; its end follows
        self._drain_output()
        reason = _read_report(self._report, detail)
        if reason.kind == "time" and self._exceeded_budget:
            reason = replace(reason, detail=self._exceeded_budget)
        self._raise_ended(reason)

    def _raise_ended(self, reason: ExitReason) -> NoReturn:
        self._exit_reason = reason
        if reason.kind == "internal":
            self.on_lost()
        raise ProcessEnded(reason)


def _read_report(report: bytes, detail: str) -> ExitReason:
    """Return what a supervisor has reported; `detail` is what the client itself observed."""
    if not report:
        # A supervisor always reports before it exits, so this one was killed.
        return ExitReason(kind="internal", detail="the supervisor was killed")
    try:
        reason = parse_exit_report(report)
    except InvalidFrame as error:
        return ExitReason(kind="internal", detail=f"the supervisor's report is invalid: {error}")
    is_client_side = reason.kind in ("protocol", "output")
    return replace(reason, detail=reason.detail or (detail if is_client_side else ""))


def _has_data(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(0))
