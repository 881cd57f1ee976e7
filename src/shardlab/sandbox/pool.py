"""The judge's side: keeps a zygote, asks it for guests, and talks with them over pipes.

Opens the house for guests at the highest level that this machine holds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence

from shardlab.errors import ForkServerFailed, SandboxLevelUnavailable
from shardlab.sandbox.fork_request import receive_errand, send_errand
from shardlab.sandbox.frame import Frame
from shardlab.sandbox.process import ExitReason, Level, Limits, ProcessEnded, Role
from shardlab.sandbox.process_pipes import PipedProcess

_START = (
    "import sys, json\n"
    "sys.path[:] = json.loads(sys.argv[2])\n"
    "from shardlab.sandbox.zygote import main\n"
    "main(int(sys.argv[1]))"
)
_N_DEVICES = 8
_ROLES: tuple[Role, ...] = ("author", "runner")


class ZygoteRefused(Exception):
    """A zygote could not be prepared at a level, or did not hold it.

    `is_error` where that is not what the kernel says, but something that should not have happened.
    """

    def __init__(self, words: str, *, is_error: bool = False) -> None:
        super().__init__(words)
        self.is_error = is_error


class ForkServerPool:
    """Guests from a fork server, which is started again when it is gone.

    One guest of each role is kept ready: it has started while the person was thinking.
    """

    def __init__(self, level: Level, hidden: Sequence[str]) -> None:
        self.level = level
        self._hidden = [os.path.realpath(path) for path in hidden]
        self._lock = threading.Lock()
        self._ready: dict[Role, tuple[Limits, PipedProcess]] = {}
        self._is_closed = False
        self._zygote: _Zygote | None = _Zygote(level, self._hidden)
        if level != "C":
            self._try()
        for role in _ROLES:
            self._make_ready(role, Limits())

    def guest(self, role: Role, limits: Limits) -> PipedProcess:
        """Return a new confined process. Raises `ProcessEnded` where none can be had."""
        guest = self._taken(role, limits)
        for attempt in range(3):
            try:
                guest = guest or self._ask_zygote(role, limits)
                guest.when_closed = lambda: self._make_ready(role, limits)
                return guest
            except (OSError, ZygoteRefused) as error:
                if attempt == 2:
                    raise ProcessEnded(
                        ExitReason(why="judge", detail=f"no process for it: {error}")
                    ) from error
        raise AssertionError

    def close(self) -> None:
        """End the zygote, and with it every guest."""
        with self._lock:
            self._is_closed = True
            self._forget()

    @property
    def zygote_pid(self) -> int | None:
        """The process that guests descend from; for whoever watches over this machine."""
        return self._zygote.pid if self._zygote else None

    def __enter__(self) -> ForkServerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask_zygote(self, role: str, limits: Limits) -> PipedProcess:
        with self._lock:
            if self._zygote is not None and not self._zygote.is_alive():
                self._forget()
            if self._zygote is None:
                self._zygote = _Zygote(self.level, self._hidden)
            try:
                return self._zygote.guest(role, limits)
            except OSError:
                self._forget()  # it is ending, even if it has not ended yet
                raise

    def _taken(self, role: Role, limits: Limits) -> PipedProcess | None:
        """Return the guest that is ready, if it is one of these limits and still there."""
        with self._lock:
            kept, guest = self._ready.pop(role, (limits, None))
        if guest is not None and (kept != limits or guest.has_ended()):
            guest.close()
            return None
        return guest

    def _make_ready(self, role: Role, limits: Limits) -> None:
        """Have the zygote fork the guest that will be asked for next; it needs no waiting for."""
        with self._lock:
            if self._is_closed or role in self._ready or self._zygote is None:
                return
            with contextlib.suppress(OSError):  # then there is none, and the next is asked for
                self._ready[role] = (limits, self._zygote.guest(role, limits))

    def _forget(self) -> None:
        for _, guest in self._ready.values():
            guest.close()
        self._ready.clear()
        if self._zygote is not None:
            self._zygote.close()
        self._zygote = None

    def _try(self) -> None:
        """Attack this house from a throw-away guest; refuse the level if anything succeeds."""
        guest = self._ask_zygote("trial", Limits(wall_seconds=10))
        is_error = False
        try:
            asked = {"hidden": self._hidden, "judge": os.getpid()}
            broken = guest.ask(Frame(asked)).header["broken"]
        except ProcessEnded as ended:
            is_error = True
            broken = [f"the trial did not end well: {ended} {guest.output[-500:]}"]
        finally:
            guest.close()
        if broken:
            self.close()
            raise ZygoteRefused("; ".join(map(str, broken)), is_error=is_error)


class _Zygote:
    """One fork server and the socket to it."""

    def __init__(self, level: Level, hidden: Sequence[str]) -> None:
        try:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise ZygoteRefused(f"no fork server: {error}", is_error=True) from error
        with theirs:
            try:
                self._process = _started(theirs.fileno())
            except OSError as error:
                self._control.close()
                raise ZygoteRefused(f"no fork server: {error}", is_error=True) from error
        try:
            send_errand(self._control, {"level": level, "hidden": list(hidden)})
            answer = receive_errand(self._control)
        except (OSError, ValueError) as error:
            self.close()
            broke = f"the fork server broke off: {error}"
            raise ZygoteRefused(broke, is_error=True) from error
        if answer is None or "ready" not in answer[0]:
            words = answer[0].get("refused") if answer else self._last_words()
            self.close()
            is_error = answer is None or bool(answer[0].get("is_error"))
            raise ZygoteRefused(str(words), is_error=is_error)

    def guest(self, role: str, limits: Limits) -> PipedProcess:
        mine: list[int] = []
        theirs: list[int] = []
        try:
            for reads in (False, True, True):  # requests, answers, output
                ends = os.pipe()
                theirs.append(ends[1] if reads else ends[0])
                mine.append(ends[0] if reads else ends[1])
            told, tells = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            theirs.append(tells.detach())
            mine.append(told.detach())
            asked = {"role": role, "limits": dataclasses.asdict(limits)}
            send_errand(self._control, asked, theirs)
        except BaseException:
            for fd in mine:
                os.close(fd)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        return PipedProcess(mine, limits)

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

    def _last_words(self) -> str:
        assert self._process.stderr
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(5)
            said = self._process.stderr.read().decode("utf-8", "replace")[-2000:]
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            return said.strip() or f"the fork server ended by itself ({how})"
        return "the fork server does not answer"


def _started(control: int) -> subprocess.Popen[bytes]:
    """Return a fork server that listens at a descriptor."""
    paths = json.dumps(_import_paths())
    return subprocess.Popen(
        [sys.executable, "-s", "-P", "-c", _START, str(control), paths],
        pass_fds=(control,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=_environment(),
        start_new_session=True,  # Ctrl-C is for the judge, which closes what it opened
    )


def _import_paths() -> list[str]:
    """Return where a zygote imports from: as the judge, but never from the folder it stands in.

    That one may hold answers, and an answer called numpy.py must not be imported.
    """
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = [os.path.abspath(path) for path in sys.path if path]
    return [path for path in paths if path == package or path != os.getcwd()]


def _environment() -> dict[str, str]:
    """Return what a zygote is told about the machine: nothing that could be a secret."""
    passed = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {
        **passed,
        "HOME": "/",
        "LC_ALL": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(_N_DEVICES),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        # Their thread pools start at import, and a fork is clean with one thread only.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",  # macOS: guests are forked, never exec'd
    }


_LEVELS: tuple[Level, ...] = ("A", "B", "C")
_PROBLEMS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "catalogue", "problems")


def open_sandbox_pool(
    level: Level | None = None,
    hidden: Sequence[str | os.PathLike[str]] = (),
    *,
    at_least: Level = "C",
) -> ForkServerPool:
    """Return a house at `level`, or at the highest that holds.

    Guests cannot read `hidden` paths (at A and B), nor the solutions of the built-in catalogue.

    A level is never assumed: the house is attacked from a throw-away guest first. `at_least="A"`
    is for a shared server, which must not start with less. Where a level is not held because of
    an error, and not because the kernel refuses it, a warning says so.
    """
    _check_threads()
    kept = [*(os.fspath(path) for path in hidden), _PROBLEMS]
    refused: list[str] = []
    failed: list[str] = []
    for each in _LEVELS[_LEVELS.index(level or "A") :]:
        if each > at_least:
            break
        try:
            house = ForkServerPool(each, kept)
        except ZygoteRefused as error:
            refused.append(f"{each}: {error}")
            failed += refused[-1:] if error.is_error else []
        else:
            if failed:
                words = f"The judge works at level {each}, because of an error. {'; '.join(failed)}"
                warnings.warn(words, RuntimeWarning, stacklevel=2)
            return house
    if at_least != "C":
        raise SandboxLevelUnavailable(
            f"Another person's code cannot be confined at level {at_least} here.",
            where="; ".join(refused) or f"level {level} was asked for",
            fix="run it on Linux with user namespaces allowed, or as root; levels: docs/judge.md.",
        )
    raise ForkServerFailed(
        "The judge's fork server did not start.",
        where="; ".join(refused),
        fix="python -c 'import jax, flax, shardlab' shows what is missing.",
    )


def _check_threads() -> None:
    """Refuse a limit under which XLA aborts for want of threads, as if the answer had done it."""
    import resource  # not everywhere, and this file is imported everywhere

    most, needed = resource.getrlimit(resource.RLIMIT_NPROC)[0], 2 * Limits().n_processes
    if os.geteuid() == 0 or most == resource.RLIM_INFINITY or most >= needed:
        return
    raise ForkServerFailed(
        "The judge's fork server did not start.",
        where=f"this user may have {most} processes and threads; two guests may need {needed}",
        fix=f"raise that limit: ulimit -u {4 * needed}.",
    )
