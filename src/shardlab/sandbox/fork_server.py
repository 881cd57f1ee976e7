"""One fork server process and the client's socket to it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from shardlab.sandbox import bubblewrap
from shardlab.sandbox.frame import InvalidFrame
from shardlab.sandbox.messages import (
    ForkRequest,
    StartRequest,
    StartResponse,
    receive_message,
    send_message,
)
from shardlab.sandbox.piped_process import PipedProcess
from shardlab.sandbox.process import ForkServerConfig, Level, ProcessLimits
from shardlab.sandbox.usage_record import create_usage_file

_ZYGOTE_COMMAND = (
    "import sys, json\n"
    "sys.path[:] = json.loads(sys.argv[2])\n"
    "from shardlab.sandbox.zygote import main\n"
    "main(int(sys.argv[1]))"
)
_EXIT_SECONDS = 30.0  # for a fork server that closed its socket to exit
_CLOSE_SECONDS = 5.0  # for one at level C to end what its processes have started
_PING_SECONDS = 30.0


class ZygoteError(Exception):
    """The fork server could not be prepared at a level, or the level did not hold.

    `is_internal` separates a failure that should not happen from a kernel that lacks a feature.
    """

    def __init__(self, message: str, *, is_internal: bool = False) -> None:
        super().__init__(message)
        self.is_internal = is_internal


class ForkServer:
    """A running fork server. It is used by one thread at a time."""

    def __init__(
        self,
        config: ForkServerConfig,
        environment: Mapping[str, str],
        level: Level,
        hidden_paths: Sequence[str],
        *,
        is_wrapped: bool,
    ) -> None:
        self._level = level
        self.n_forks, self.n_open, self.is_retired = 0, 0, False
        self.is_suspect = False  # one of its processes was lost, so it may be gone too
        self._started_at = time.monotonic()
        try:
            self._control, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise ZygoteError(f"no fork server: {error}", is_internal=True) from error
        with peer:
            try:
                self._process = _spawn_zygote(peer.fileno(), environment, is_wrapped=is_wrapped)
            except OSError as error:
                self._control.close()
                raise ZygoteError(f"no fork server: {error}", is_internal=True) from error
        response = self._request_start(config, level, hidden_paths)
        if response.error:
            self.close()
            raise ZygoteError(response.error, is_internal=response.is_internal)

    def _request_start(
        self, config: ForkServerConfig, level: Level, hidden_paths: Sequence[str]
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
            own_fds.append(create_usage_file())
            peer_fds.append(os.dup(own_fds[-1]))
            send_message(self._control, ForkRequest(role=role, limits=limits), peer_fds)
        except BaseException:
            for fd in own_fds:
                os.close(fd)
            raise
        finally:
            for fd in peer_fds:
                os.close(fd)
        self.n_forks += 1
        return PipedProcess(own_fds, limits)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def age_seconds(self) -> float:
        return time.monotonic() - self._started_at

    def is_alive(self) -> bool:
        """Return whether it runs; if that is in doubt, ask it.

        A process that is about to end still takes requests, and then nobody handles them.
        """
        if self._process.poll() is not None:
            return False
        return not self.is_suspect or self._responds()

    def _responds(self) -> bool:
        try:
            self._control.settimeout(_PING_SECONDS)
            send_message(self._control, ForkRequest(role="", limits=ProcessLimits()))
            is_alive = receive_message(self._control, StartResponse) is not None
            self._control.settimeout(None)
        except (OSError, InvalidFrame):
            return False
        self.is_suspect = not is_alive
        return is_alive

    def close(self) -> None:
        self._control.close()
        if self._level == "C":
            # It ends what its processes have forked; a killed one cannot.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSE_SECONDS)
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


def _spawn_zygote(
    control_fd: int, environment: Mapping[str, str], *, is_wrapped: bool
) -> subprocess.Popen[bytes]:
    command = [
        *(sys.executable, "-s", "-P", "-c", _ZYGOTE_COMMAND),
        *(str(control_fd), json.dumps(_find_import_paths())),
    ]
    return subprocess.Popen(
        bubblewrap.wrap_command(command) if is_wrapped else command,
        pass_fds=(control_fd,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=_zygote_environment(environment),
        start_new_session=True,  # Ctrl-C goes to the client, which closes what it has opened
    )


def _find_import_paths() -> list[str]:
    """Return the client's import paths without its current folder.

    That folder may hold submissions, and one that is called numpy.py must not be imported.
    """
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = [os.path.abspath(path) for path in sys.path if path]
    return [path for path in paths if path == package or path != os.getcwd()]


def _zygote_environment(environment: Mapping[str, str]) -> dict[str, str]:
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
        **environment,
    }
