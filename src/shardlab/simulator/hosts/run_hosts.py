"""Starts the virtual hosts of `shardlab run --hosts`, connects them, and prints what they print.

Each host is a process: its globals, imported modules, random state and threads are its own, as on a
real host. They are forked from this process, which has loaded JAX but started no backend, so a host
starts in a fraction of a second.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from shardlab.errors import HostFailed, InvalidHosts, LabError
from shardlab.simulator.hosts.coordinator import Coordinator, Outbox, RunEnded
from shardlab.simulator.hosts.host_output import HostOutput
from shardlab.simulator.hosts.host_process import HostProgram, run_host
from shardlab.simulator.hosts.messages import decode_message, encode_message
from shardlab.simulator.script_runner import check_program_exists

# When nothing has come from the hosts for so long: hosts that all wait are asked whether one of
# their threads works, and an unfinished line is printed.
_IDLE_S = 0.05
# How long interrupted hosts may clean up before they are killed.
_GRACE_S = 5.0
_NO_INITIALIZE = (
    "note: The program does not call jax.distributed.initialize(). On real hosts each process "
    "would see its own devices only, unless its launcher makes that call."
)


@dataclass(frozen=True)
class HostsResult:
    """How the run ended: the exit code, the summary, and the error that ended it early."""

    exit_code: int
    summary: str
    error: LabError | None = None


@dataclass
class _HostProcess:
    """The process of one host, as seen from outside."""

    pid: int
    connection: socket.socket
    streams: list[int]  # what it prints: standard output and standard error
    received: bytes = b""
    ended: bool = field(default=False)


def run_on_hosts(options: HostProgram) -> HostsResult:
    """Run a program on `options.n_hosts` virtual hosts, and print what they print."""
    check_program_exists(options.program, options.is_module)
    _check_counts(options)
    shared_memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(
        prefix="shardlab-hosts-", dir=shared_memory if os.access(shared_memory, os.W_OK) else None
    )
    try:
        with HostOutput(options.n_hosts, options.output) as host_output:
            return _Run(replace(options, folder=Path(folder)), host_output).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_counts(options: HostProgram) -> None:
    devices, n_hosts = options.devices, options.n_hosts
    if devices is not None and devices % n_hosts:
        raise InvalidHosts(
            f"{devices} devices cannot be divided among {n_hosts} hosts: every host has as many.",
            where=f"shardlab run --hosts {n_hosts} --devices {devices}",
            fix=f"--devices is the number of all hosts together, such as {n_hosts * 4}.",
        )


class _Run:
    """One run: starts the hosts, passes messages until all have ended."""

    def __init__(self, options: HostProgram, output: HostOutput) -> None:
        self._options = options
        self._output = output
        self._coordinator = Coordinator(options.n_hosts)
        self._selector = selectors.DefaultSelector()
        self._hosts: list[_HostProcess] = []

    def run(self) -> HostsResult:
        error: LabError | None = None
        with self._selector:
            try:
                for index in range(self._options.n_hosts):
                    self._start(index)
                self._pass_messages()
            except RunEnded as end:
                error = end.error
            except KeyboardInterrupt:
                # The terminal has interrupted the hosts too: let them end as programs do.
                with contextlib.suppress(RunEnded):
                    self._pass_messages(until=time.monotonic() + _GRACE_S)
                raise
            finally:
                self._end_all()
        return self._result(error)

    def _start(self, index: int) -> None:
        ours, theirs = socket.socketpair()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # NumPy's idle threads: they do not hold locks that a host needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _redirect(index, out_write, err_write)
            for other in self._hosts:
                other.connection.close()
            ours.close()
            run_host(self._options, index, theirs)
        theirs.close()
        for fd in (out_write, err_write):
            os.close(fd)
        host = _HostProcess(pid, ours, [out_read, err_read])
        self._hosts.append(host)
        self._selector.register(ours, selectors.EVENT_READ, (index, "messages"))
        self._selector.register(out_read, selectors.EVENT_READ, (index, "stdout"))
        self._selector.register(err_read, selectors.EVENT_READ, (index, "stderr"))

    def _pass_messages(self, until: float = math.inf) -> None:
        while self._selector.get_map() and time.monotonic() < until:
            must_ask = self._coordinator.needs_probe and self._coordinator.may_be_blocked()
            is_watched = must_ask or self._output.has_prompt or until < math.inf
            ready = self._selector.select(_IDLE_S if is_watched else None)
            if not ready:
                self._output.print_prompt()
                if must_ask:
                    self._send(self._coordinator.start_probe())
            for key, _ in ready:
                index, kind = key.data
                if kind == "messages":
                    self._receive(index)
                else:
                    self._forward(index, kind, key.fd)

    def _receive(self, index: int) -> None:
        host = self._hosts[index]
        try:
            data = host.connection.recv(1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            self._selector.unregister(host.connection)
            _, status = os.waitpid(host.pid, 0)
            host.ended = True
            self._coordinator.end_host(index, _exit_code(status))
            return
        *lines, host.received = (host.received + data).split(b"\n")
        for line in lines:
            self._send(self._coordinator.receive(index, decode_message(line)))

    def _send(self, messages: Outbox) -> None:
        for index, message in messages:
            with contextlib.suppress(OSError):  # the process has just ended
                self._hosts[index].connection.sendall(encode_message(message))

    def _forward(self, index: int, stream: str, fd: int) -> None:
        data = os.read(fd, 1 << 16)
        if not data:
            self._selector.unregister(fd)
            os.close(fd)
            self._hosts[index].streams.remove(fd)
        self._output.write(index, stream, data)

    def _end_all(self) -> None:
        for host in self._hosts:
            if not host.ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(host.pid, signal.SIGKILL)
                os.waitpid(host.pid, 0)
        for index, host in enumerate(self._hosts):
            host.connection.close()
            for fd, stream in zip(host.streams, ("stdout", "stderr"), strict=False):
                for data in _unread(fd):
                    self._output.write(index, stream, data)
                os.close(fd)

    def _result(self, error: LabError | None) -> HostsResult:
        hosts = self._coordinator.hosts
        codes = [host.exit_code for host in hosts if host.exit_code]
        code = codes[0] if codes else 0
        if error is not None:
            own_code = code if isinstance(error, HostFailed) and code else error.exit_code
            return HostsResult(own_code, "", error)
        finished = [host.finished for host in hosts if host.finished is not None]
        summary = finished[0].summary if finished else ""
        if finished and not any(f.is_distributed for f in finished):
            summary += f"\n{_NO_INITIALIZE}"
        return HostsResult(code, summary)


def _redirect(index: int, out: int, err: int) -> None:
    """Give a host its own output, and its input to the first host only."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    if index > 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream in (sys.stdout, sys.stderr):
        # A line at a time, as in a terminal: lines of several hosts are mixed.
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code  # a signal, as in a shell


def _unread(fd: int) -> Iterator[bytes]:
    """Yield what is left in a pipe; a process that the host started may keep it open."""
    os.set_blocking(fd, False)
    with contextlib.suppress(BlockingIOError):
        while data := os.read(fd, 1 << 16):
            yield data
