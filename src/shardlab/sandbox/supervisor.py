"""Watches one guest: wall clock, processor time, memory, threads; ends it; says how it ended.

At level A it is pid 1 of the guest's own processes, so that nothing of them outlives it. Commands
come as single letters: b(usy) and i(dle) run and stop the wall clock; o, f, c and t end the guest
for its output, its frames, its closed pipes, its time. When nobody listens any more, it ends the
guest.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

from shardlab.sandbox import kernel
from shardlab.sandbox.confinement import ConfinementPlan
from shardlab.sandbox.process import Limits

_LOOK_EVERY = 0.02
_LOOK_EVERY_IDLE = 0.2
HAS_BEGUN = b"!"  # what a process says before it takes its first request
_ENDS = {b"o": "output", b"f": "frame", b"c": "frame", b"t": "time"}


def supervise(
    pid: int,
    told: socket.socket,
    limits: Limits,
    room: ConfinementPlan,
    proc_pid: int,
    hears: int = -1,
) -> None:
    """Watch a guest until it has ended, and report it.

    `hears` is where it says that it has begun: one that ends before is not the answer's doing.
    """
    watch = _Watch(pid, limits, _stat_file(room, proc_pid))
    why = watch.until_ended(told)
    _, status, usage = watch.reaped or os.wait4(pid, 0)
    if why is None and hears >= 0 and os.read(hears, 16) != HAS_BEGUN:
        why = "unprepared"
    watch.cpu = max(watch.cpu, usage.ru_utime + usage.ru_stime)
    scale = 1 if sys.platform == "darwin" else 1024
    report = {
        **watch.ending(status, why, is_confined=room.level != "C"),
        "seconds": round(watch.busy_seconds(), 3),
        "peak_bytes": max(watch.peak_bytes, usage.ru_maxrss * scale),
        "idle_seconds": round(watch.idle_seconds(), 3),
    }
    with contextlib.suppress(OSError):  # nobody listens any more
        told.sendall(json.dumps(report).encode())


class _Watch:
    """What is known of a running guest."""

    def __init__(self, pid: int, limits: Limits, stat: int | None) -> None:
        self._pid, self._limits, self._stat = pid, limits, stat
        self._busy_before = 0.0
        self._busy_since: float | None = None
        self.cpu, self._worked_at = 0.0, time.monotonic()
        self.peak_bytes = 0
        self.reaped: tuple[int, int, Any] | None = None  # what wait4 says, where it was asked early

    def idle_seconds(self) -> float:
        """Return for how long the guest has used no processor; it may wait for itself for ever."""
        return time.monotonic() - self._worked_at if self._stat is not None else 0.0

    def busy_seconds(self) -> float:
        now = time.monotonic()
        return self._busy_before + (now - self._busy_since if self._busy_since else 0.0)

    def until_ended(self, told: socket.socket) -> str | None:
        """Return why the guest had to be ended; None where it ended by itself."""
        poll, handle = select.poll(), _handle(self._pid)
        poll.register(told, select.POLLIN)
        if handle is not None:
            poll.register(handle, select.POLLIN)
        while True:
            pause = _LOOK_EVERY if self._busy_since or handle is None else _LOOK_EVERY_IDLE
            ready = dict(poll.poll(pause * 1000))
            if handle in ready or (handle is None and self._has_ended()):
                return None
            why = self._heard(told) if told.fileno() in ready else None
            why = why or self._exceeded()
            if why:
                _kill(self._pid, handle)
                return why

    def _has_ended(self) -> bool:
        """Ask the kernel, where it does not tell by itself (macOS)."""
        pid, status, usage = os.wait4(self._pid, os.WNOHANG)
        if pid:
            self.reaped = (pid, status, usage)
        return bool(pid)

    def _heard(self, told: socket.socket) -> str | None:
        commands = told.recv(16)
        if not commands:
            return "judge"
        for number in commands:
            command = bytes([number])
            if command in _ENDS:
                return _ENDS[command]
            self._busy_before = self.busy_seconds()
            self._busy_since = time.monotonic() if command == b"b" else None
        return None

    def _exceeded(self) -> str | None:
        if self.busy_seconds() > self._limits.wall_seconds:
            return "clock"
        if self._stat is None:
            return None
        try:
            # "pid (any name) state ...": the name is the guest's to choose
            fields = os.pread(self._stat, 4096, 0).rpartition(b")")[2].split()
            cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            n_threads, n_pages = int(fields[17]), int(fields[21])
        except (OSError, ValueError, IndexError):
            return None  # it is ending
        if cpu > self.cpu:
            self.cpu, self._worked_at = cpu, time.monotonic()
        in_use = n_pages * os.sysconf("SC_PAGE_SIZE")
        self.peak_bytes = max(self.peak_bytes, in_use)
        if in_use > self._limits.memory_bytes:
            return "memory"
        if n_threads > self._limits.n_processes:
            return "threads"
        if cpu > self._limits.cpu_seconds:
            return "processor"
        return "idle" if self._is_waiting() else None

    def _is_waiting(self) -> bool:
        """Say whether a request is pending, and nothing has been done about it for too long."""
        if self._busy_since is None:
            return False
        since = max(self._worked_at, self._busy_since)
        return time.monotonic() - since > self._limits.idle_seconds

    def ending(self, status: int, why: str | None, *, is_confined: bool) -> dict[str, Any]:
        """Return how the guest ended, from what the kernel says and what was done to it.

        One that is confined gets signals from itself alone, but for SIGKILL, which it cannot send.
        """
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        told: dict[str, Any] = {"signal": number, "exit_code": code, "detail": ""}
        if why == "threads":
            told["detail"] = f"more than {self._limits.n_processes} threads"
            why = "memory"
        elif why == "unprepared":
            told["detail"], why = "the process ended before it was confined", "judge"
        elif why is None and number == signal.SIGXCPU:
            why = "processor"
        elif why is None and number == signal.SIGKILL and self.cpu > self._limits.cpu_seconds:
            why = "processor"  # the kernel keeps that limit too
        elif why is None and number == signal.SIGKILL:
            # A guest cannot send this, and here nobody did: somebody outside, or the kernel,
            # which was short of memory.
            is_large = self.peak_bytes > self._limits.memory_bytes // 2
            why = "memory" if is_large else "judge"
            told["detail"] = "the process was killed from outside"
        if why in ("time", "clock", "processor", "idle"):
            told["detail"], why = self._limit(why), "time"
        told["why"] = why or ("exit" if number is None else "signal")
        told["is_own"] = is_confined and told["why"] == "signal"
        return told

    def _limit(self, why: str) -> str:
        """Return the limit of time that was reached, in words."""
        if why == "processor":
            return f"{self._limits.cpu_seconds:g} s of processor time"
        if why == "idle":
            return f"{self._limits.idle_seconds:g} s of waiting without computing"
        return f"{self._limits.wall_seconds:g} s by the clock"


def _stat_file(room: ConfinementPlan, proc_pid: int) -> int | None:
    """Return the kernel's figures about the guest; None where there are none to read."""
    if room.proc < 0:
        return None
    try:
        return os.open(f"{proc_pid}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=room.proc)
    except OSError:
        return None


def _handle(pid: int) -> int | None:
    """Return a descriptor of a process that is ready when it has ended, where there is such."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _kill(pid: int, handle: int | None) -> None:
    try:
        if handle is not None:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def protect_supervisor() -> None:
    """Die with the zygote, and show nothing to a guest of the same user."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if sys.platform == "linux":
        kernel.keep_secret()
        kernel.die_with_parent()
