"""A seccomp filter: an allow-list of system calls, with their arguments where these matter.

What is not listed fails with EPERM, so that a person reads "not permitted" rather than a crash;
calls newer than the tables fail with ENOSYS, as on an older kernel, and libraries fall back.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Sequence

from shardlab.sandbox.system_calls import AARCH64, X86_64

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_TABLES = {"x86_64": X86_64, "aarch64": AARCH64}
_NEWEST = 450  # calls beyond the tables are unknown here: they do not exist for a guest

_LOAD, _IS, _AT_LEAST, _HAS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16

_CLONE_THREAD = 0x10000
_SIGKILL = 9
# O_CREAT, O_TRUNC, O_TMPFILE: there is no place to write to. Old kernels' Landlock misses some.
_WRITES = 0x40 | 0x200 | 0x400000
# F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ: signals by way of files
_FCNTL_REFUSED = (8, 10, 15, 1024, 1026, 1031)
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
_IOCTL_ALLOWED = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_CAPBSET_READ, PR_GET_NO_NEW_PRIVS, PR_SET_VMA
_PRCTL_ALLOWED = (3, 15, 16, 23, 39, 0x53564D41)
_AS_IF_OLD = ("clone3", "openat2", "epoll_pwait2", "futex_waitv")
_JUDGED = (
    *("clone", "kill", "tgkill", "prlimit64", "ioctl", "prctl", "fcntl", "open", "openat", "mmap"),
)
_WRITABLE, _SHARED, _ANONYMOUS = 2, 1, 0x20

Step = tuple[int, int, int, int]


def filter_program(pid: int) -> bytes:
    """Return the filter for the process `pid`, which may send signals to itself only."""
    machine = platform.machine()
    if machine not in _TABLES:
        raise OSError(errno.ENOSYS, f"no table of system calls for {machine}")
    calls = _TABLES[machine]
    steps: list[Step] = [
        (_LOAD, 0, 0, _MACHINE),
        (_IS, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    for name, number in calls.items():
        if name in _JUDGED:
            steps += _where_called(number, _judged(name, pid))
        elif name in _AS_IF_OLD:
            steps += _where_called(number, [_refuse(errno.ENOSYS)])
        else:
            steps += _where_called(number, [_allow()])
    steps += [(_AT_LEAST, 0, 1, _NEWEST + 1), _refuse(errno.ENOSYS), _refuse(errno.EPERM)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _judged(name: str, pid: int) -> list[Step]:
    """Return the steps for a call that depends on its arguments."""
    eperm = errno.EPERM
    if name == "clone":  # threads, never processes
        return [_argument(0), (_HAS, 1, 0, _CLONE_THREAD), _refuse(eperm), _allow()]
    if name in ("kill", "tgkill"):
        # Never SIGKILL, not even to itself: one that the supervisor did not send is an accident.
        signal = [_argument(1 if name == "kill" else 2), (_IS, 0, 1, _SIGKILL), _refuse(eperm)]
        return [_argument(0), (_IS, 1, 0, pid), _refuse(eperm), *signal, _allow()]
    if name == "prlimit64":
        # To read only: a limit that a guest lowers ends it as if somebody outside had.
        halves = [_argument(2), (_IS, 0, 2, 0), _argument(2, upper=True), (_IS, 1, 0, 0)]
        return [*halves, _refuse(eperm), *_one_of(0, (0, pid), eperm)]
    if name == "ioctl":
        return _one_of(1, _IOCTL_ALLOWED, errno.ENOTTY)
    if name == "prctl":
        return _one_of(0, _PRCTL_ALLOWED, eperm)
    if name == "fcntl":
        checks = [step for each in _FCNTL_REFUSED for step in ((_IS, 0, 1, each), _refuse(eperm))]
        return [_argument(1), *checks, _allow()]
    if name == "mmap":  # nobody counts what is shared and not in use: it is not the process's own
        shared = [_argument(3), (_HAS, 1, 0, _SHARED), _allow()]
        kinds = [(_HAS, 2, 0, _ANONYMOUS), _argument(2), (_HAS, 0, 1, _WRITABLE)]
        return [*shared, *kinds, _refuse(eperm), _allow()]
    flags = 1 if name == "open" else 2
    return [_argument(flags), (_HAS, 0, 1, _WRITES), _refuse(errno.EACCES), _allow()]


def _one_of(position: int, values: Sequence[int], otherwise: int) -> list[Step]:
    checks = [step for each in values for step in ((_IS, 0, 1, each), _allow())]
    return [_argument(position), *checks, _refuse(otherwise)]


def _where_called(number: int, steps: list[Step]) -> list[Step]:
    """Return steps that are passed over unless this is the call."""
    return [(_IS, 0, len(steps), number), *steps]


def _argument(position: int, *, upper: bool = False) -> Step:
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * position + 4 * upper)  # both machines are little-endian


def _allow() -> Step:
    return (_RETURN, 0, 0, _ALLOW)


def _refuse(number: int) -> Step:
    return (_RETURN, 0, 0, 0x50000 | number)
