"""The fork server: loads JAX once, holds no secret, and forks a supervised guest for each errand.

Everything here runs before or beside another person's code, never with it. Fork is clean with one
thread only, so XLA's backend is never started here: each guest starts its own.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from shardlab.sandbox import kernel
from shardlab.sandbox.confinement import ConfinementPlan, confine
from shardlab.sandbox.fork_request import receive_errand, send_errand
from shardlab.sandbox.landlock import landlock_version, ruleset
from shardlab.sandbox.private_root import enter_private_root, own_namespaces
from shardlab.sandbox.process import Level, Limits
from shardlab.sandbox.readable_paths import around, guest_paths
from shardlab.sandbox.supervisor import HAS_BEGUN, protect_supervisor, supervise

_ROLES = {
    "author": "shardlab.judge.worker.tracer",
    "runner": "shardlab.judge.worker.runner",
    "trial": "shardlab.sandbox.self_test",
}
_WARM = "shardlab.judge.worker.warmup"
_NUMBER_BYTES = 20  # of a process, as it is told to its supervisor


def main(control_fd: int) -> None:
    """Prepare once, then fork guests until the judge is gone."""
    control = socket.socket(fileno=control_fd)
    first = receive_errand(control)
    if first is None:
        return
    plan = first[0]
    try:
        room = _prepared(plan["level"], plan["hidden"], control)
    except Exception as error:
        is_kernels = isinstance(error, OSError)
        words = str(error) if is_kernels else traceback.format_exc(limit=-4)
        send_errand(control, {"refused": words[-2000:], "is_error": not is_kernels})
        return
    send_errand(control, {"ready": True})
    _serve(control, room)


def _prepared(level: Level, hidden: Sequence[str], control: socket.socket) -> ConfinementPlan:
    if sys.platform != "linux" and level != "C":
        raise OSError(f"level {level} needs Linux, this is {sys.platform}")
    if level != "C" and not landlock_version():
        raise OSError("this kernel has no Landlock")
    if level == "A":
        _try_namespaces()
        own_namespaces()
        _continue_as_first(control)
    _load()
    if sys.platform != "linux":
        return ConfinementPlan(level=level)
    proc = _proc(level)
    kernel.adopt_orphans()
    paths = guest_paths()
    is_reachable = level == "A" or _can_anybody_read(paths)
    if level == "C":
        return ConfinementPlan(level=level, proc=proc, is_reachable=is_reachable)
    if level == "A":
        enter_private_root(paths, hidden)
    rules = ruleset(*around(paths, hidden))
    return ConfinementPlan(level=level, rules=rules, proc=proc, is_reachable=is_reachable)


def _proc(level: Level) -> int:
    """Return the folder of the kernel's figures; -1 where there is none, which only C can do."""
    if os.path.lexists("/proc/self"):
        return os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if level != "C":
        raise OSError("there is no /proc")
    return -1


def _try_namespaces() -> None:
    """Try it all in a throw-away process: some kernels let it pass and refuse half-way."""

    def attempt() -> None:
        own_namespaces()
        pid = os.fork()
        if pid == 0:
            _exit_with(lambda: enter_private_root(["/usr/lib"], []))
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    pid = os.fork()
    if pid == 0:
        _exit_with(attempt)
    number = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if number:
        words = os.strerror(number) if number > 0 else f"signal {-number}"
        raise OSError(f"namespaces are refused: {words}")


def _exit_with(act: Any) -> None:
    """End this process with 0, or with the number of the error that the kernel gave."""
    try:
        act()
    except OSError as error:
        os._exit(error.errno or 1)
    except BaseException:
        os._exit(1)
    os._exit(0)


def _continue_as_first(control: socket.socket) -> None:
    """Go on as pid 1 of the new namespace; all in it ends with that process."""
    pid = os.fork()
    if pid == 0:
        kernel.die_with_parent()
        return
    control.close()
    os.closerange(3, 256)
    os._exit(abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))


def _load() -> None:
    """Import what guests need, so that they need not."""
    for name in _ROLES.values():
        import_module(name)
    if find_spec(_WARM):
        import_module(_WARM).warm()
    gc.collect()
    gc.freeze()


def _can_anybody_read(paths: Sequence[str]) -> bool:
    """Return whether a user without rights gets to these paths."""
    if os.geteuid() != 0:
        return True
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        os._exit(0 if all(os.access(path, os.R_OK) for path in paths) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# ---------------------------------------------------------------------------------- one guest


def _serve(control: socket.socket, room: ConfinementPlan) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended supervisors are forgotten by themselves
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_blocking(2, False)  # nobody reads it from here on
    own_pids = os.open("self/ns/pid", os.O_RDONLY, dir_fd=room.proc) if room.level == "A" else -1
    slot = int.from_bytes(os.urandom(2), "little")  # another house may count too
    while (errand := receive_errand(control)) is not None:
        asked, fds = errand
        slot += 1
        if _n_threads(room) != 1:
            os._exit(3)  # a fork would copy locks that nobody gives back
        if room.level == "A":
            kernel.unshare(kernel.NEWPID)
        pid = os.fork()
        if pid == 0:
            control.detach()
            _supervise(room, asked, fds, slot)
        if room.level == "A":
            kernel.set_namespace(own_pids, kernel.NEWPID)
        for fd in fds:
            os.close(fd)


def _n_threads(room: ConfinementPlan) -> int:
    if room.proc < 0:
        return threading.active_count()
    return os.stat("self/task", dir_fd=room.proc).st_nlink - 2  # a folder for each thread


def _supervise(room: ConfinementPlan, asked: dict[str, Any], fds: list[int], slot: int) -> None:
    """Fork a guest and watch it. Never returns."""
    try:
        limits = Limits(**asked["limits"])
        requests, answers, output, told_fd = fds
        protect_supervisor()
        own_pid = os.getpid()
        hears, says = os.pipe()
        pid = os.fork()
        if pid == 0:
            fds = [requests, answers, output, says]
            _be_guest(room, asked["role"], limits, slot, own_pid, fds)
        for fd in (requests, answers, output, says):
            os.close(fd)
        proc_pid = int(os.read(hears, _NUMBER_BYTES) or b"0")
        supervise(pid, socket.socket(fileno=told_fd), limits, room, proc_pid, hears)
    except BaseException:
        with contextlib.suppress(Exception):  # the judge reads this only where a start fails
            traceback.print_exc()
    os._exit(0)


def _be_guest(
    room: ConfinementPlan, role: str, limits: Limits, slot: int, parent: int, fds: list[int]
) -> None:
    """Give everything up and answer requests. Never returns."""
    code = 70
    try:
        number = os.readlink("self", dir_fd=room.proc) if room.proc >= 0 else str(os.getpid())
        os.write(fds[3], number.encode().ljust(_NUMBER_BYTES))
        _be_first_to_go(room)
        room, says = _only_these(room, *fds)
        confine(room, limits, slot)
        if os.getppid() != parent:
            os._exit(1)  # it died before its death could be asked to be told
        os.write(says, HAS_BEGUN)
        os.close(says)  # from here on nobody believes this process
        import_module(_ROLES[role]).main(3, 4)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # it may be closed, or another person's
            stream.flush()
    os._exit(code & 255)


def _be_first_to_go(room: ConfinementPlan) -> None:
    """Where the machine runs out of memory, the kernel shall end this process, not the judge."""
    with contextlib.suppress(OSError):
        fd = os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=room.proc)
        os.write(fd, b"1000")
        os.close(fd)


def _only_these(
    room: ConfinementPlan, requests: int, answers: int, output: int, says: int
) -> tuple[ConfinementPlan, int]:
    """Close every descriptor but 0-2, requests (3), answers (4), what is said to the supervisor
    (5) and the rules of Landlock (6); return the last two, which are closed a little later.
    """
    import fcntl
    from dataclasses import replace

    null = os.open(os.devnull, os.O_RDONLY)
    wanted = {0: null, 1: output, 2: output, 3: requests, 4: answers, 5: says}
    if room.rules >= 0:
        wanted[6] = room.rules
    # First out of the way, then to their places: one may lie where another must go. No farther
    # than that: beyond the limit of open files there is no place.
    safe = {to: fcntl.fcntl(fd, fcntl.F_DUPFD, len(wanted)) for to, fd in wanted.items()}
    for to, fd in safe.items():
        os.dup2(fd, to, inheritable=False)
    os.closerange(len(wanted), 4096)
    return replace(room, rules=6 if room.rules >= 0 else -1, proc=-1), 5
