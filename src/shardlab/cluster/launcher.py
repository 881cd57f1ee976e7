"""Starts the processes of a launch, watches them, and leaves none behind.

Each process has its job on standard input and its messages on standard output, on this machine and
through ssh alike. The end of this process, in any way, closes their standard input, and a watcher
beside each of them then kills it (`execution/worker.py`).
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any

from shardlab.cluster.activity import ActivitySample, is_active, process_state, sample_activity
from shardlab.cluster.diagnosis import LaunchFailure, ProcessView, find_failure, find_hang
from shardlab.cluster.launch_target import LaunchTarget, ProcessCommand, process_commands
from shardlab.cluster.messages import (
    Arrival,
    KnownCollective,
    KnownCollectives,
    LaunchJob,
    ProcessFailure,
    Status,
    decode_message,
    encode_message,
)
from shardlab.cluster.records import ProcessRecord
from shardlab.errors import LaunchTimeLimit
from shardlab.execution.messages import MessageError
from shardlab.execution.worker_client import shorten_paths

_POLL_SECONDS = 0.25
# After the first failure: others may fail for the same reason, or be its cause.
_SETTLE_SECONDS = 2.0
_END_SECONDS = 5.0
# gloo prints this line for every process when it connects.
_GLOO_GREETING = b"[Gloo] Rank "
# A remote process whose Python has not said anything yet: nobody can tell whether it is busy.
_SILENT_START_FACTOR = 6
_SSH_FAILED = 255  # ssh's own exit code
# Environment that a remote process needs too.
_FORWARDED = ("JAX_", "XLA_", "GLOO_", "NCCL_", "LIBTPU_")

ReportStep = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class LaunchLimits:
    """When to give up."""

    stall_seconds: float = 10.0
    total_seconds: float | None = None


@dataclass(kw_only=True, eq=False)
class _Process:
    """One process and what it has sent."""

    number: int
    host: str
    popen: subprocess.Popen[bytes]
    is_local: bool
    status: Status = field(default_factory=lambda: Status(phase="starting"))
    status_at: float = field(default_factory=time.monotonic)
    pid: int | None = None
    record: ProcessRecord | None = None
    failure: ProcessFailure | None = None
    ended_by: str = ""
    ended_order: int = 0
    has_sent: bool = False
    sample: ActivitySample | None = None
    silent_since: float = field(default_factory=time.monotonic)

    def idle_seconds(self, now: float) -> float:
        """Return for how long it has been idle.

        Its own figure, while its messages come. A process that sends nothing may hold the
        interpreter's lock in native code or be stopped: then /proc tells, on this machine.
        """
        if self.has_sent and now - self.status_at < 3.0:
            self.sample, self.silent_since = None, now
            return self.status.idle_seconds + (now - self.status_at)
        if not self.is_local:
            silence = now - self.status_at
            return silence if self.has_sent else silence / _SILENT_START_FACTOR
        sample = sample_activity(self.popen.pid)
        if self.sample is None or is_active(self.sample, sample, with_waits=True):
            self.silent_since = now
        self.sample = sample
        return now - self.silent_since

    def view(self, now: float) -> ProcessView:
        is_stopped = self.is_local and process_state(self.popen.pid) in ("T", "t")
        return ProcessView(
            process=self.number,
            host=self.host,
            pid=self.pid or (self.popen.pid if self.is_local else None),
            status=self.status,
            idle_seconds=self.idle_seconds(now),
            is_done=self.record is not None,
            failure=self.failure,
            ended_by=self.ended_by,
            ended_order=self.ended_order,
            is_stopped=is_stopped,
        )


# The number of a process, and a message, a line that is none, or its exit code.
_Event = tuple[int, Any]


class ProcessLauncher:
    """Runs one launch; `run` returns the record of each process or raises the diagnosis."""

    def __init__(self, job: LaunchJob, target: LaunchTarget, limits: LaunchLimits) -> None:
        self._job, self._target, self._limits = job, target, limits
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._processes: list[_Process] = []
        self._collectives: dict[str, tuple[KnownCollective, ...]] = {}
        self._n_broken = 0
        # A process has died: what others print now is how XLA and gloo report the lost peer.
        self._is_ending = False
        self._where = f"{job.command_line} --on {target.text}"

    def run(self, report_step: ReportStep) -> list[ProcessRecord]:
        environment = {
            name: value for name, value in os.environ.items() if name.startswith(_FORWARDED)
        }
        commands = process_commands(self._target, os.getcwd(), environment)
        coordinator = self._choose_coordinator()
        with self._ended_at_exit():
            for number, command in enumerate(commands):
                self._start(number, command, coordinator)
            return self._wait(report_step)

    def _choose_coordinator(self) -> str:
        if self._target.kind == "local":
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                return f"127.0.0.1:{probe.getsockname()[1]}"
        # A port of the first host, which cannot be probed from here.
        return f"{self._target.hosts[0].address}:{49152 + secrets.randbelow(12000)}"

    def _start(self, number: int, command: ProcessCommand, coordinator: str) -> None:
        is_local = self._target.kind == "local"
        popen = subprocess.Popen(
            command.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        process = _Process(number=number, host=command.host, popen=popen, is_local=is_local)
        self._processes.append(process)
        _start_thread(self._read_messages, process)
        _start_thread(self._forward_output, popen.stderr, number)
        job = replace(self._job, process=number, coordinator=coordinator, is_loopback=is_local)
        assert popen.stdin
        with contextlib.suppress(OSError):  # it has ended already, which is reported below
            popen.stdin.write(encode_message(job).encode() + b"\n")
            popen.stdin.flush()

    def _read_messages(self, process: _Process) -> None:
        assert process.popen.stdout
        for line in process.popen.stdout:
            try:
                message = decode_message(shorten_paths(line.decode("utf-8", "replace")))
                self._events.put((process.number, message))
            except MessageError:
                _print_line(process.number, line)  # from the shell of a remote host
        code = process.popen.wait()
        if process.record is None and process.failure is None:
            self._is_ending = True
        self._events.put((process.number, code))

    def _forward_output(self, pipe: IO[bytes], number: int) -> None:
        for line in pipe:
            if not self._is_ending and not line.startswith(_GLOO_GREETING):
                _print_line(number, line)

    def _wait(self, report_step: ReportStep) -> list[ProcessRecord]:
        start = time.monotonic()
        settle_until: float | None = None
        while True:
            for number, event in self._next_events():
                self._apply(self._processes[number], event)
            now = time.monotonic()
            records = [process.record for process in self._processes]
            if all(record is not None for record in records):
                return [record for record in records if record is not None]
            report_step(self._progress_text())
            views = [process.view(now) for process in self._processes]
            if self._n_broken:
                settle_until = settle_until or now + _SETTLE_SECONDS
                if now >= settle_until or self._n_broken == len(self._processes):
                    self._raise(find_failure(views, self._collectives, self._where))
                continue
            limit = self._limits.stall_seconds
            if hang := find_hang(views, self._collectives, limit, self._where):
                raise hang
            if self._limits.total_seconds and now - start > self._limits.total_seconds:
                raise self._time_limit(views)

    def _raise(self, failure: LaunchFailure | None) -> None:
        assert failure is not None
        if failure.traceback:
            sys.stderr.write(failure.traceback + "\n")
        raise failure.error

    def _next_events(self) -> list[_Event]:
        events = []
        with contextlib.suppress(queue.Empty):
            events.append(self._events.get(timeout=_POLL_SECONDS))
            while True:
                events.append(self._events.get_nowait())
        return events

    def _apply(self, process: _Process, event: Any) -> None:
        process.status_at, process.has_sent = time.monotonic(), True
        if isinstance(event, Status):
            process.status = event
        elif isinstance(event, Arrival):
            process.pid = event.pid
            process.host = process.host if process.is_local else event.host
        elif isinstance(event, KnownCollectives):
            self._collectives[event.program] = event.collectives
        elif isinstance(event, ProcessRecord):
            process.record = event
        elif isinstance(event, ProcessFailure):
            process.failure, process.status = event, event.status
            self._count_broken(process)
        elif isinstance(event, int) and process.record is None and process.failure is None:
            process.ended_by = _end_text(event, process.is_local)
            self._count_broken(process)

    def _count_broken(self, process: _Process) -> None:
        self._n_broken += 1
        process.ended_order = self._n_broken

    def _progress_text(self) -> str:
        phases = [process.status.phase for process in self._processes]
        counts = (f"{phases.count(phase)} {phase}" for phase in dict.fromkeys(phases))
        return f"{len(phases)} processes: {', '.join(counts)}"

    def _time_limit(self, views: Sequence[ProcessView]) -> LaunchTimeLimit:
        positions = "; ".join(f"{view.name} {view.position}" for view in views)
        return LaunchTimeLimit(
            f"The launch was still running after {self._limits.total_seconds:g} s and was ended: "
            f"{positions}.",
            where=self._where,
            fix="look for a loop that does not end, or allow more time (--time-limit 600).",
        )

    @contextlib.contextmanager
    def _ended_at_exit(self) -> Iterator[None]:
        try:
            yield
        finally:
            for process in self._processes:
                # Its watcher kills what is on another host; on this one the group is killed too.
                with contextlib.suppress(OSError):
                    assert process.popen.stdin
                    process.popen.stdin.close()
                if process.is_local:
                    _kill_group(process.popen)
            for process in self._processes:
                try:
                    process.popen.wait(timeout=_END_SECONDS)
                except subprocess.TimeoutExpired:
                    _kill_group(process.popen)
                    process.popen.wait()


def _kill_group(popen: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(popen.pid, signal.SIGKILL)  # start_new_session made it a group leader


def _end_text(code: int, is_local: bool) -> str:
    if code == _SSH_FAILED and not is_local:
        return "ssh (exit code 255: it could not connect, or lost the connection)"
    if code >= 0:
        return f"exit code {code}"
    known = {number.value for number in signal.Signals}  # real-time signals have no name
    return f"signal {signal.Signals(-code).name if -code in known else -code}"


def _print_line(number: int, line: bytes) -> None:
    text = line.decode("utf-8", "replace").rstrip("\n")
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"[{number}] {text}\n")


def _start_thread(target: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=target, args=args, daemon=True).start()
