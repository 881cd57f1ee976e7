"""Watches one sandboxed process: wall clock, processor time, memory, threads. Reports how it ended.

It also answers the system calls that the process's filter has rejected, and counts them.

At level A the supervisor is pid 1 of the process's own pid namespace, so nothing in it outlives the
supervisor. It ends the process as soon as its client closes the socket.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from shardlab.sandbox import kernel, seccomp
from shardlab.sandbox.cgroup import MemoryGroup
from shardlab.sandbox.confinement import ConfinementPlan
from shardlab.sandbox.messages import SupervisorCommand, exit_report_bytes
from shardlab.sandbox.process import ExitKind, ExitReason, ProcessLimits
from shardlab.sandbox.process_figures import ProcessFigures, ProcessStat, open_process_figures
from shardlab.sandbox.usage_record import UsageRecord

STARTED = b"!"  # written by the process itself, right before its entry point runs
_POLL_SECONDS = 0.02
_POLL_SECONDS_IDLE = 0.2
_EXIT_SECONDS = 0.5  # for a process that closed its pipes to exit, if there is no /proc to ask
_PF_EXITING = 0x4  # of the task flags in /proc/PID/stat; include/linux/sched.h

# Why the supervisor ended a process. None: it ended by itself.
KillCause = Literal[
    "output", "protocol", "requested", "client", "clock", "cpu", "idle", "memory", "threads"
]
_KILL_COMMANDS: dict[SupervisorCommand, KillCause] = {
    SupervisorCommand.END_FOR_OUTPUT: "output",
    SupervisorCommand.END_FOR_PROTOCOL: "protocol",
    SupervisorCommand.END_FOR_TIME: "requested",
}
_EXIT_KINDS: dict[KillCause, ExitKind] = {
    "output": "output",
    "protocol": "protocol",
    "client": "internal",
    "memory": "memory",
    "threads": "memory",
    **dict.fromkeys(("requested", "clock", "cpu", "idle"), "time"),
}


def supervise_process(
    pid: int,
    client: socket.socket,
    limits: ProcessLimits,
    plan: ConfinementPlan,
    proc_pid: int,
    started: socket.socket | None = None,
    usage: UsageRecord | None = None,
    group: MemoryGroup | None = None,
) -> None:
    """Watch a process until it has ended, and report how to the client.

    `proc_pid` is its number in the /proc of the fork server. The process writes `STARTED` to
    `started` once it is confined: if it ends before that, the sandbox failed, not its program.
    """
    figures = open_process_figures(plan.proc_fd, proc_pid)
    watch = ProcessWatch(pid, limits, figures, started=started, usage=usage, group=group)
    kill_cause = watch.wait_until_ended(client)
    _, status, rusage = watch.reap_result or os.wait4(pid, 0)
    watch.read_last_messages()
    watch.cpu_seconds = max(watch.cpu_seconds, rusage.ru_utime + rusage.ru_stime)
    scale = 1 if sys.platform == "darwin" else 1024
    watch.peak_bytes = max(watch.peak_bytes, rusage.ru_maxrss * scale)
    watch.publish_usage()
    if group is not None:
        if kill_cause is None and group.has_exceeded_limit():
            kill_cause = "memory"
        group.close()
    reason = watch.exit_reason(
        status, kill_cause, is_confined=plan.level != "C", has_started=watch.has_started
    )
    if plan.level == "C":
        end_descendants(plan.proc_fd)
    with contextlib.suppress(OSError):  # the client has closed its end
        client.sendall(exit_report_bytes(reason))


class ProcessWatch:
    """The clocks and peaks of one running process."""

    def __init__(
        self,
        pid: int,
        limits: ProcessLimits,
        figures: ProcessFigures | None,
        *,
        started: socket.socket | None = None,
        usage: UsageRecord | None = None,
        group: MemoryGroup | None = None,
    ) -> None:
        self._pid, self._limits, self._figures = pid, limits, figures
        self._started, self._usage, self._group = started, usage, group
        self._listener_fd: int | None = None
        self._busy_before = 0.0
        self._busy_since: float | None = None
        self._pipe_closed_at: float | None = None
        self.cpu_seconds, self._last_active = 0.0, time.monotonic()
        self.peak_bytes = 0
        self.has_started = started is None  # without a channel there is nothing to tell
        self.reap_result: tuple[int, int, Any] | None = None  # of wait4, if it was called early

    def idle_seconds(self) -> float:
        """Return for how long the process has not used the processor."""
        return time.monotonic() - self._last_active if self._figures is not None else 0.0

    def busy_seconds(self) -> float:
        """Return for how long requests have been pending, all of them together."""
        now = time.monotonic()
        return self._busy_before + (now - self._busy_since if self._busy_since else 0.0)

    def wait_until_ended(self, client: socket.socket) -> KillCause | None:
        """Return why the process was killed, None if it ended by itself."""
        poll, pidfd = select.poll(), _open_pidfd(self._pid)
        poll.register(client, select.POLLIN)
        if pidfd is not None:
            poll.register(pidfd, select.POLLIN)
        if self._started is not None:
            self._started.setblocking(False)
            poll.register(self._started, select.POLLIN)
        while True:
            is_busy = self._busy_since is not None or pidfd is None
            pause = _POLL_SECONDS if is_busy else _POLL_SECONDS_IDLE
            events = dict(poll.poll(pause * 1000))
            if pidfd in events or (pidfd is None and self._has_exited()):
                return None
            self._handle_process_events(events, poll)
            kill_cause = self._read_commands(client) if client.fileno() in events else None
            kill_cause = kill_cause or self._find_exceeded_limit()
            if kill_cause:
                _kill_process(self._pid, pidfd)
                return kill_cause

    def _handle_process_events(self, events: Mapping[int, int], poll: select.poll) -> None:
        """Read what the process says before it is confined, and its rejected calls afterwards."""
        if self._started is not None and self._started.fileno() in events:
            is_open = self.read_last_messages()
            if not is_open:
                poll.unregister(self._started)
                self._started.close()
                self._started = None
                if self._listener_fd is not None:
                    poll.register(self._listener_fd, select.POLLIN)
        elif self._listener_fd is not None and self._listener_fd in events:
            if events[self._listener_fd] & select.POLLIN:
                self._deny_call(self._listener_fd)
            else:  # no thread has the filter any more
                poll.unregister(self._listener_fd)

    def read_last_messages(self) -> bool:
        """Read the listener and `STARTED`; return whether more can follow."""
        while self._started is not None:
            try:
                data, fds, _, _ = socket.recv_fds(self._started, 16, 1)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if fds:
                self._listener_fd = fds[0]
            self.has_started |= STARTED in data
            if not data:
                return False
        return False

    def _deny_call(self, listener_fd: int) -> None:
        call = seccomp.receive_rejected_call(listener_fd)
        if call is not None:
            # Counted first: once the call has failed, the process may end at once.
            if self._usage is not None:
                self._usage.count_rejected_call(call.number)
            seccomp.deny_rejected_call(listener_fd, call)

    def publish_usage(self) -> None:
        """Let the client know the figures so far."""
        if self._usage is not None:
            self._usage.write_figures(self.cpu_seconds, self.peak_bytes)

    def _has_exited(self) -> bool:
        """Poll for the exit where there are no pidfds (macOS)."""
        pid, status, usage = os.wait4(self._pid, os.WNOHANG)
        if pid:
            self.reap_result = (pid, status, usage)
        return bool(pid)

    def _read_commands(self, client: socket.socket) -> KillCause | None:
        commands = client.recv(16)
        if not commands:
            return "client"
        for number in commands:
            command = SupervisorCommand(bytes([number]))
            if command in _KILL_COMMANDS:
                return _KILL_COMMANDS[command]
            if command is SupervisorCommand.END_FOR_CLOSED_PIPE:
                self._pipe_closed_at = time.monotonic()
                continue
            self._busy_before = self.busy_seconds()
            is_start = command is SupervisorCommand.REQUEST_STARTED
            self._busy_since = time.monotonic() if is_start else None
        return None

    def _find_exceeded_limit(self) -> KillCause | None:
        if self.busy_seconds() > self._limits.wall_seconds:
            return "clock"
        stat = self._read_stat()
        if self._pipe_closed_at is not None and not self._is_exiting(stat):
            return "protocol"
        if stat is None:
            return None
        self.peak_bytes = max(self.peak_bytes, stat.memory_bytes)
        if stat.cpu_seconds > self.cpu_seconds:
            self.cpu_seconds, self._last_active = stat.cpu_seconds, time.monotonic()
            self.publish_usage()
        if stat.memory_bytes > self._limits.memory_bytes:
            return "memory"
        if stat.n_threads > self._limits.n_processes:
            return "threads"
        if stat.cpu_seconds > self._limits.cpu_seconds:
            return "cpu"
        return "idle" if self._is_blocked() else None

    def _read_stat(self) -> ProcessStat | None:
        """Return the kernel's figures, None if there is no /proc or the process is gone."""
        stat = self._figures.read() if self._figures is not None else None
        if stat is None or self._group is None:
            return stat
        return replace(stat, memory_bytes=self._group.memory_bytes())

    def _is_exiting(self, stat: ProcessStat | None) -> bool:
        """Return whether the pipes are closed because the process is on its way out.

        The kernel sets PF_EXITING before it closes the files of a task. So no clock is needed to
        tell a process that exits from one that closed its pipes and goes on, however busy the
        machine is.
        """
        if stat is not None:
            return bool(stat.flags & _PF_EXITING)
        if self._figures is not None:
            return True  # it had figures, and is gone
        assert self._pipe_closed_at is not None
        return time.monotonic() - self._pipe_closed_at < _EXIT_SECONDS

    def _is_blocked(self) -> bool:
        """Return whether a request is pending and the processor unused for too long."""
        if self._busy_since is None:
            return False
        since = max(self._last_active, self._busy_since)
        return time.monotonic() - since > self._limits.idle_seconds

    def exit_reason(
        self,
        status: int,
        kill_cause: KillCause | None,
        *,
        is_confined: bool,
        has_started: bool = True,
    ) -> ExitReason:
        """Return how the process ended, from its wait status and what was done to it.

        A confined process receives signals from itself only, except SIGKILL, which it cannot send.
        """
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        kind, detail = self._classify_exit(number, kill_cause, has_started)
        return ExitReason(
            kind=kind,
            detail=detail,
            signal=number,
            exit_code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            seconds=round(self.busy_seconds(), 3),
            peak_bytes=self.peak_bytes,
            idle_seconds=round(self.idle_seconds(), 3),
            is_self_inflicted=is_confined and kind == "signal",
            cpu_seconds=round(self.cpu_seconds, 3),
        )

    def _classify_exit(
        self, number: int | None, kill_cause: KillCause | None, has_started: bool
    ) -> tuple[ExitKind, str]:
        if kill_cause is None and not has_started:
            return "internal", "the process ended before it was confined"
        if kill_cause is None and number == signal.SIGXCPU and self._has_used_cpu_limit():
            kill_cause = "cpu"  # and not a signal that the process has sent to itself
        if kill_cause is None and number == signal.SIGKILL:
            # The process cannot send this signal and the supervisor did not. RLIMIT_CPU sends it
            # too, and so does a kernel that is short of memory; otherwise it came from outside.
            if self._has_used_cpu_limit():
                kill_cause = "cpu"
            else:
                is_large = self.peak_bytes > self._limits.memory_bytes // 2
                return "memory" if is_large else "internal", "the process was killed from outside"
        if kill_cause is None:
            return ("exit" if number is None else "signal"), ""
        return _EXIT_KINDS[kill_cause], self._limit_text(kill_cause)

    def _has_used_cpu_limit(self) -> bool:
        return self.cpu_seconds > self._limits.cpu_seconds

    def _limit_text(self, kill_cause: KillCause) -> str:
        """Return the limit that was reached."""
        limits = self._limits
        return {
            "cpu": f"{limits.cpu_seconds:g} s of processor time",
            "idle": f"{limits.idle_seconds:g} s without using the processor",
            "clock": f"{limits.wall_seconds:g} s of wall-clock time",
            "requested": f"{limits.wall_seconds:g} s of wall-clock time",
            "threads": f"more than {limits.n_processes} threads",
        }.get(kill_cause, "")


def _open_pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process has ended, where there is one."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _kill_process(pid: int, pidfd: int | None) -> None:
    try:
        if pidfd is not None:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def protect_supervisor() -> None:
    """End with the fork server, and hide from a sandboxed process of the same user."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if sys.platform == "linux":
        kernel.forbid_inspection()
        kernel.die_with_parent()
        kernel.adopt_orphans()


def end_descendants(proc_fd: int) -> None:
    """End everything that was started below this process, which adopts what loses its parent.

    Only where processes can start others. Whatever a process does to get away (fork, new session,
    exit of the one between), it becomes a child of this one sooner or later.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    while children := _list_children(proc_fd):
        for pid in children:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)


def _list_children(proc_fd: int) -> list[int]:
    if proc_fd < 0:
        return []
    own, children = str(os.getpid()).encode(), []
    for name in os.listdir(proc_fd):
        with contextlib.suppress(OSError, IndexError):
            if name.isdigit():
                fd = os.open(f"{name}/stat", os.O_RDONLY, dir_fd=proc_fd)
                with open(fd, "rb") as file:
                    parent = file.read().rpartition(b")")[2].split()[1]
                children += [int(name)] if parent == own else []
    return children
