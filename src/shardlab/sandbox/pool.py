"""The client's side of the sandbox: keeps a fork server, and starts processes through it.

`open_sandbox_pool` uses the highest level of confinement that this machine holds.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence

from shardlab.errors import ForkServerFailed, SandboxLevelUnavailable
from shardlab.sandbox import self_test
from shardlab.sandbox.frame import InvalidFrame
from shardlab.sandbox.messages import (
    ForkRequest,
    StartRequest,
    StartResponse,
    receive_message,
    send_message,
)
from shardlab.sandbox.piped_process import PipedProcess
from shardlab.sandbox.process import ExitReason, Level, PoolConfig, ProcessEnded, ProcessLimits

_ZYGOTE_COMMAND = (
    "import sys, json\n"
    "sys.path[:] = json.loads(sys.argv[2])\n"
    "from shardlab.sandbox.zygote import main\n"
    "main(int(sys.argv[1]))"
)
_MAX_ATTEMPTS = 3
_EXIT_SECONDS = 30.0  # for a fork server that closed its socket to exit


class ZygoteError(Exception):
    """The fork server could not be prepared at a level, or the level did not hold.

    `is_internal` separates a failure that should not happen from a kernel that lacks a feature.
    """

    def __init__(self, message: str, *, is_internal: bool = False) -> None:
        super().__init__(message)
        self.is_internal = is_internal


class ForkServerPool:
    """Starts processes by a fork server, which is restarted if it is gone.

    One process of each of the config's `ready_roles` is forked ahead of time, so that it starts up
    while its client does something else.
    """

    def __init__(self, config: PoolConfig, level: Level, hidden_paths: Sequence[str]) -> None:
        self.level = level
        self._config = config
        self._hidden_paths = tuple(os.path.realpath(path) for path in hidden_paths)
        self._lock = threading.Lock()
        self._ready: dict[str, tuple[ProcessLimits, PipedProcess]] = {}
        self._is_closed = False
        self._zygote: _Zygote | None = self._start_zygote()
        if level != "C":
            self._run_self_test()
        for role in config.ready_roles:
            self._fork_ahead(role, ProcessLimits())

    def start_process(self, role: str, limits: ProcessLimits) -> PipedProcess:
        """Return a new sandboxed process. Raises `ProcessEnded` if none can be started."""
        process = self._take_ready(role, limits)
        for attempt in range(_MAX_ATTEMPTS):
            try:
                process = process or self._fork_process(role, limits)
                process.on_close = lambda: self._fork_ahead(role, limits)
                return process
            except (OSError, ZygoteError) as error:
                if attempt == _MAX_ATTEMPTS - 1:
                    detail = f"no process could be started: {error}"
                    raise ProcessEnded(ExitReason(kind="internal", detail=detail)) from error
        raise AssertionError

    def close(self) -> None:
        """End the fork server, and with it every process."""
        with self._lock:
            self._is_closed = True
            self._discard_zygote()

    @property
    def zygote_pid(self) -> int | None:
        """The process that all others descend from; for monitoring."""
        return self._zygote.pid if self._zygote else None

    def __enter__(self) -> ForkServerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_zygote(self) -> _Zygote:
        return _Zygote(self._config, self.level, self._hidden_paths)

    def _fork_process(self, role: str, limits: ProcessLimits) -> PipedProcess:
        with self._lock:
            if self._zygote is not None and not self._zygote.is_alive():
                self._discard_zygote()
            if self._zygote is None:
                self._zygote = self._start_zygote()
            try:
                return self._zygote.fork_process(role, limits)
            except OSError:
                self._discard_zygote()  # it is ending, even if it has not ended yet
                raise

    def _take_ready(self, role: str, limits: ProcessLimits) -> PipedProcess | None:
        """Return the process that is ready, if it has these limits and has not ended."""
        with self._lock:
            ready_limits, process = self._ready.pop(role, (limits, None))
        if process is not None and (ready_limits != limits or process.has_ended()):
            process.close()
            return None
        return process

    def _fork_ahead(self, role: str, limits: ProcessLimits) -> None:
        """Fork the process that will be needed next; nothing waits for it."""
        with self._lock:
            is_wanted = role in self._config.ready_roles and role not in self._ready
            if self._is_closed or not is_wanted or self._zygote is None:
                return
            with contextlib.suppress(OSError):  # then the next one is forked when it is needed
                self._ready[role] = (limits, self._zygote.fork_process(role, limits))

    def _discard_zygote(self) -> None:
        for _, process in self._ready.values():
            process.close()
        self._ready.clear()
        if self._zygote is not None:
            self._zygote.close()
        self._zygote = None

    def _run_self_test(self) -> None:
        """Attack the sandbox from a throw-away process; raise `ZygoteError` if anything works."""
        request = self_test.SelfTestRequest(hidden_paths=self._hidden_paths, client_pid=os.getpid())
        process = self._fork_process(self_test.ROLE, ProcessLimits())
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
            self.close()
            raise ZygoteError("; ".join(breaches), is_internal=is_internal)


class _Zygote:
    """One fork server and the socket to it."""

    def __init__(self, config: PoolConfig, level: Level, hidden_paths: Sequence[str]) -> None:
        try:
            self._control, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise ZygoteError(f"no fork server: {error}", is_internal=True) from error
        with peer:
            try:
                self._process = _spawn_zygote(peer.fileno(), config)
            except OSError as error:
                self._control.close()
                raise ZygoteError(f"no fork server: {error}", is_internal=True) from error
        response = self._request_start(config, level, hidden_paths)
        if response.error:
            self.close()
            raise ZygoteError(response.error, is_internal=response.is_internal)

    def _request_start(
        self, config: PoolConfig, level: Level, hidden_paths: Sequence[str]
    ) -> StartResponse:
        request = StartRequest(
            level=level,
            hidden_paths=tuple(hidden_paths),
            entry_points=config.entry_points,
            warmup_module=config.warmup_module,
        )
        try:
            send_message(self._control, request)
            message = receive_message(self._control, StartResponse)
        except (OSError, InvalidFrame) as error:
            self.close()
            text = f"the connection to the fork server failed: {error}"
            raise ZygoteError(text, is_internal=True) from error
        if message is None:
            return StartResponse(error=self._read_failure(), is_internal=True)
        return message[0]

    def fork_process(self, role: str, limits: ProcessLimits) -> PipedProcess:
        own_fds: list[int] = []
        peer_fds: list[int] = []
        try:
            for is_from_process in (False, True, True):  # requests, responses, output
                read_end, write_end = os.pipe()
                peer_fds.append(write_end if is_from_process else read_end)
                own_fds.append(read_end if is_from_process else write_end)
            own_socket, peer_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            peer_fds.append(peer_socket.detach())
            own_fds.append(own_socket.detach())
            send_message(self._control, ForkRequest(role=role, limits=limits), peer_fds)
        except BaseException:
            for fd in own_fds:
                os.close(fd)
            raise
        finally:
            for fd in peer_fds:
                os.close(fd)
        return PipedProcess(own_fds, limits)

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._control.close()
        self._process.kill()
        self._process.wait()
        if self._process.stderr:
            self._process.stderr.close()

    def _read_failure(self) -> str:
        """Return why a fork server ended: its last output, or its exit status."""
        assert self._process.stderr
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_EXIT_SECONDS)
            output = self._process.stderr.read().decode("utf-8", "replace")[-2000:]
            status = f"signal {-code}" if code < 0 else f"exit code {code}"
            return output.strip() or f"the fork server ended ({status})"
        return "the fork server does not respond"


def _spawn_zygote(control_fd: int, config: PoolConfig) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(sys.executable, "-s", "-P", "-c", _ZYGOTE_COMMAND),
            *(str(control_fd), json.dumps(_find_import_paths())),
        ],
        pass_fds=(control_fd,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=_zygote_environment(config),
        start_new_session=True,  # Ctrl-C goes to the client, which closes what it has opened
    )


def _find_import_paths() -> list[str]:
    """Return the client's import paths without its current folder.

    That folder may hold submissions, and one that is called numpy.py must not be imported.
    """
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = [os.path.abspath(path) for path in sys.path if path]
    return [path for path in paths if path == package or path != os.getcwd()]


def _zygote_environment(config: PoolConfig) -> dict[str, str]:
    """Return the environment of a fork server: nothing of the client's that could be a secret."""
    inherited = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {
        **inherited,
        "HOME": "/",
        "LC_ALL": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
        # Their thread pools start at import, and only a process with one thread can be forked.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        # macOS aborts a fork without exec as soon as an Objective-C class was initialized.
        "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",
        **config.environment,
    }


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
            pool = ForkServerPool(config, candidate, hidden)
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
    modules = ", ".join(config.entry_points.values())
    raise ForkServerFailed(
        "The fork server of the sandbox did not start.",
        where="; ".join(reasons),
        fix=f"python -c 'import {modules}' shows what is missing.",
    )


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
