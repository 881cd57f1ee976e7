"""The client's side of the sandbox: keeps its fork servers, and starts processes through them.

`open_sandbox_pool` uses the highest level of confinement that this machine holds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from shardlab.errors import ForkServerFailed, SandboxLevelUnavailable
from shardlab.sandbox import bubblewrap, self_test
from shardlab.sandbox.fork_server import ForkServer, ZygoteError
from shardlab.sandbox.frame import InvalidFrame
from shardlab.sandbox.piped_process import PipedProcess
from shardlab.sandbox.process import (
    ExitReason,
    ForkServerConfig,
    Level,
    PoolConfig,
    ProcessEnded,
    ProcessLimits,
)

_MAX_ATTEMPTS = 3
_CONFINEMENT = {
    "A": "namespaces, Landlock and seccomp",
    "B": "Landlock and seccomp",
    "C": "limits only, no sandbox",
}
_LOG = logging.getLogger("shardlab.sandbox")


@dataclass(frozen=True, kw_only=True)
class PoolStatistics:
    """What a pool has done so far."""

    n_forks: int
    n_fork_servers: int  # started, also in the place of others
    rejected_calls: Mapping[str, int]  # of all processes that were closed, by system call
    unwrapped_reason: str  # why the fork servers are not inside bubblewrap; empty if they are


@dataclass
class _Server:
    """The fork server of some roles, and its successor while that one starts."""

    config: ForkServerConfig
    current: ForkServer | None = None
    is_being_replaced: bool = False
    retired: list[ForkServer] = field(default_factory=list)


class ForkServerPool:
    """Starts processes by fork servers, which are restarted if they are gone.

    One process of each of the config's `ready_roles` is forked ahead of time, so that it starts up
    while its client does something else.
    """

    def __init__(
        self,
        config: PoolConfig,
        level: Level,
        hidden_paths: Sequence[str],
        *,
        unwrapped_reason: str = "",
    ) -> None:
        self.level = level
        wrapper = "" if unwrapped_reason else ", inside bubblewrap"
        self.confinement = _CONFINEMENT[level] + wrapper
        self._config, self._unwrapped_reason = config, unwrapped_reason
        self._hidden_paths = tuple(os.path.realpath(path) for path in hidden_paths)
        self._lock = threading.RLock()
        self._ready: dict[str, tuple[ProcessLimits, PipedProcess]] = {}
        self._is_closed = False
        self._n_forks, self._n_servers = 0, 0
        self._rejected_calls: Counter[str] = Counter()
        self._servers = [_Server(server) for server in config.fork_servers]
        self._start_all_servers()
        for role in config.ready_roles:
            self._fork_ahead(role, ProcessLimits())

    def statistics(self) -> PoolStatistics:
        """Return what the pool has done so far."""
        with self._lock:
            return PoolStatistics(
                n_forks=self._n_forks,
                n_fork_servers=self._n_servers,
                rejected_calls=dict(self._rejected_calls),
                unwrapped_reason=self._unwrapped_reason,
            )

    def start_process(self, role: str, limits: ProcessLimits) -> PipedProcess:
        """Return a new sandboxed process. Raises `ProcessEnded` if none can be started."""
        process = self._take_ready(role, limits)
        for attempt in range(_MAX_ATTEMPTS):
            try:
                process = process or self._fork_process(role, limits)
                self._fork_ahead_at_close(process, role, limits)
                return process
            except (OSError, ZygoteError) as error:
                if attempt == _MAX_ATTEMPTS - 1:
                    detail = f"no process could be started: {error}"
                    raise ProcessEnded(ExitReason(kind="internal", detail=detail)) from error
        raise AssertionError

    def close(self) -> None:
        """End the fork servers, and with them every process."""
        with self._lock:
            self._is_closed = True
            for server in self._servers:
                self._discard_server(server)
                for retired in server.retired:
                    retired.close()
                server.retired.clear()

    @property
    def zygote_pids(self) -> tuple[int, ...]:
        """The processes that all others descend from; for monitoring."""
        current = [server.current for server in self._servers]
        return tuple(server.pid for server in current if server is not None)

    def __enter__(self) -> ForkServerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------ fork servers

    def _start_all_servers(self) -> None:
        """Start the fork servers at the same time; each loads JAX, which takes seconds."""
        errors: list[ZygoteError] = []

        def start(server: _Server) -> None:
            try:
                server.current = self._start_server(server)
            except ZygoteError as error:
                errors.append(error)

        with ThreadPoolExecutor(len(self._servers)) as executor:
            list(executor.map(start, self._servers))
        if errors:
            self.close()
            raise errors[0]

    def _start_server(self, server: _Server) -> ForkServer:
        """Return a new fork server whose level holds. Raises `ZygoteError`."""
        started = ForkServer(
            server.config,
            self._config.environment,
            self.level,
            self._hidden_paths,
            is_wrapped=not self._unwrapped_reason,
        )
        with self._lock:
            self._n_servers += 1
        try:
            if self.level != "C":
                self._run_self_test(started)
        except BaseException:
            started.close()
            raise
        return started

    def _server_of(self, role: str) -> _Server:
        return next(server for server in self._servers if role in server.config.entry_points)

    def _fork_process(self, role: str, limits: ProcessLimits) -> PipedProcess:
        server = self._server_of(role)
        with self._lock:
            if server.current is not None and not server.current.is_alive():
                self._discard_server(server)
            if server.current is None:
                server.current = self._start_server(server)
            try:
                return self._fork_from(server, role, limits)
            except OSError:
                self._discard_server(server)  # it is ending, even if it has not ended yet
                raise

    def _fork_from(self, server: _Server, role: str, limits: ProcessLimits) -> PipedProcess:
        fork_server = server.current
        assert fork_server is not None
        process = fork_server.fork_process(role, limits)
        fork_server.n_open += 1
        self._n_forks += 1

        def release_process() -> None:
            self._count_rejected_calls(role, process)
            with self._lock:
                fork_server.n_open -= 1
                if fork_server.is_retired and not fork_server.n_open:
                    self._end_retired(server, fork_server)

        def mark_suspect() -> None:
            fork_server.is_suspect = True

        process.on_close, process.on_lost = release_process, mark_suspect
        self._renew_if_old(server, fork_server)
        return process

    def _count_rejected_calls(self, role: str, process: PipedProcess) -> None:
        calls = process.rejected_calls
        if calls:
            text = ", ".join(f"{name} ({count})" for name, count in sorted(calls.items()))
            _LOG.info("rejected system calls of a %s: %s", role, text)
        with self._lock:
            self._rejected_calls.update(calls)

    def _renew_if_old(self, server: _Server, fork_server: ForkServer) -> None:
        """Start the successor of a fork server that has forked enough, beside its work."""
        config = self._config
        is_old = fork_server.age_seconds > config.max_age_seconds
        if server.is_being_replaced or not (is_old or fork_server.n_forks >= config.max_forks):
            return
        server.is_being_replaced = True
        threading.Thread(target=self._replace_server, args=(server,), daemon=True).start()

    def _replace_server(self, server: _Server) -> None:
        try:
            successor = self._start_server(server)
        except ZygoteError as error:  # the old one works on
            _LOG.warning("a fork server could not be renewed: %s", error)
            with self._lock:
                server.is_being_replaced = False
            return
        with self._lock:
            server.is_being_replaced = False
            if self._is_closed:
                successor.close()
                return
            old, server.current = server.current, successor
            if old is not None:
                # Its processes end with it, so it stays until the last of them is closed.
                old.is_retired = True
                server.retired.append(old)
            self._close_ready(server)
            if old is not None and not old.n_open:
                self._end_retired(server, old)
            for role in server.config.entry_points:
                self._fork_ahead(role, ProcessLimits())

    def _end_retired(self, server: _Server, fork_server: ForkServer) -> None:
        if fork_server in server.retired:
            server.retired.remove(fork_server)
            fork_server.close()

    def _discard_server(self, server: _Server) -> None:
        current, server.current = server.current, None
        self._close_ready(server)
        if current is not None:
            current.close()

    # --------------------------------------------------------------------------- forked ahead

    def _take_ready(self, role: str, limits: ProcessLimits) -> PipedProcess | None:
        """Return the process that is ready, if it has these limits and has not ended."""
        with self._lock:
            ready_limits, process = self._ready.pop(role, (limits, None))
        if process is not None and (ready_limits != limits or process.has_ended()):
            process.close()
            return None
        return process

    def _fork_ahead_at_close(self, process: PipedProcess, role: str, limits: ProcessLimits) -> None:
        """Have the next process of this role forked when this one, which was used, is closed."""
        release_process = process.on_close

        def close_and_fork() -> None:
            release_process()
            self._fork_ahead(role, limits)

        process.on_close = close_and_fork

    def _fork_ahead(self, role: str, limits: ProcessLimits) -> None:
        """Fork the process that will be needed next; nothing waits for it."""
        with self._lock:
            is_wanted = role in self._config.ready_roles and role not in self._ready
            if self._is_closed or not is_wanted:
                return
            server = self._server_of(role)
            if server.current is None or server.current.is_suspect:
                return
            with contextlib.suppress(OSError):  # then the next one is forked when it is needed
                self._ready[role] = (limits, self._fork_from(server, role, limits))

    def _close_ready(self, server: _Server) -> None:
        for role in server.config.entry_points:
            _, process = self._ready.pop(role, (None, None))
            if process is not None:
                process.close()

    def _run_self_test(self, fork_server: ForkServer) -> None:
        """Attack the sandbox from a throw-away process; raise `ZygoteError` if anything works."""
        request = self_test.SelfTestRequest(hidden_paths=self._hidden_paths, client_pid=os.getpid())
        process = fork_server.fork_process(self_test.ROLE, ProcessLimits())
        is_internal = False
        try:
            response = self_test.SelfTestResponse.from_frame(process.request(request.to_frame()))
            breaches = list(response.breaches)
        except (ProcessEnded, InvalidFrame) as error:
            is_internal = True
            breaches = [f"the self test failed: {error} {process.output[-500:]}"]
        finally:
            process.close()
        if breaches:
            raise ZygoteError("; ".join(breaches), is_internal=is_internal)


_LEVELS: tuple[Level, ...] = ("A", "B", "C")


def open_sandbox_pool(
    config: PoolConfig,
    level: Level | None = None,
    hidden_paths: Sequence[str | os.PathLike[str]] = (),
    *,
    at_least: Level = "C",
) -> ForkServerPool:
    """Return a pool at `level`, or at the highest level below it that holds.

    A level is never assumed: at A and B the pool is attacked from a throw-away process first, and
    its processes cannot read `hidden_paths`. A shared server passes `at_least="A"`, so that it does
    not start with less. If a level is skipped because of an error, and not because the kernel lacks
    a feature, a warning says so.
    """
    _check_process_limit()
    hidden = [os.fspath(path) for path in hidden_paths]
    reasons: list[str] = []
    internal_errors: list[str] = []
    for candidate in _LEVELS[_LEVELS.index(level or "A") :]:
        if candidate > at_least:
            break
        try:
            pool = _open_at_level(config, candidate, hidden)
        except ZygoteError as error:
            reasons.append(f"{candidate}: {error}")
            internal_errors += reasons[-1:] if error.is_internal else []
        else:
            if internal_errors:
                message = f"The sandbox works at level {candidate} because of an error. "
                message += "; ".join(internal_errors)
                warnings.warn(message, RuntimeWarning, stacklevel=2)
            return pool
    if at_least != "C":
        raise SandboxLevelUnavailable(
            f"Submissions cannot be confined at level {at_least} on this machine.",
            where="; ".join(reasons) or f"level {level} was requested",
            fix="run it on Linux with user namespaces allowed, or as root; levels: docs/judge.md.",
        )
    modules = ", ".join(
        module for server in config.fork_servers for module in server.entry_points.values()
    )
    raise ForkServerFailed(
        "The fork server of the sandbox did not start.",
        where="; ".join(reasons),
        fix=f"python -c 'import {modules}' shows what is missing.",
    )


def _open_at_level(config: PoolConfig, level: Level, hidden_paths: Sequence[str]) -> ForkServerPool:
    """Return a pool at a level, inside bubblewrap if the level can be reached there."""
    reason = bubblewrap.missing_reason()
    if not reason:
        try:
            return ForkServerPool(config, level, hidden_paths)
        except ZygoteError as error:
            reason = f"level {level} cannot be reached inside bubblewrap: {error}"
    return ForkServerPool(config, level, hidden_paths, unwrapped_reason=reason)


def _check_process_limit() -> None:
    """Raise if a user limit is so low that XLA would abort, as if the submission had done it."""
    import resource  # does not exist on Windows, where this file is imported all the same

    limit, needed = resource.getrlimit(resource.RLIMIT_NPROC)[0], 2 * ProcessLimits().n_processes
    if os.geteuid() == 0 or limit == resource.RLIM_INFINITY or limit >= needed:
        return
    raise ForkServerFailed(
        "The fork server of the sandbox did not start.",
        where=f"this user may have {limit} processes and threads; a submission may need {needed}",
        fix=f"raise that limit: ulimit -u {4 * needed}.",
    )
