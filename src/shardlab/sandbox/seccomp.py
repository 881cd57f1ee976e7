"""A seccomp filter: an allow-list of system calls, with their arguments where these matter.

A call that is not listed fails with EPERM, so that the program gets "Operation not permitted" and
does not crash. Calls newer than the tables fail with ENOSYS, as on an older kernel, so that
libraries fall back to older ones.

Rejected calls are counted where the kernel can notify the supervisor of them (Linux 5.0, and no
other listener): then the supervisor answers with the same error that the filter would have given.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from shardlab.sandbox.system_calls import AARCH64, X86_64

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_TABLES = {"x86_64": X86_64, "aarch64": AARCH64}
_NEWEST = 450  # the last call that the tables were written for

# Classic BPF: load a word, jump if equal / greater or equal / any bit set, return.
_LOAD, _IS, _AT_LEAST, _HAS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _NOTIFY, _DENY = 0x7FFF0000, 0x80000000, 0x7FC00000, 0x50000
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data

_CLONE_THREAD = 0x10000
_SIGKILL = 9
# O_CREAT, O_TRUNC, O_TMPFILE. Landlock before ABI 3 does not cover truncation.
_WRITE_FLAGS = 0x40 | 0x200 | 0x400000
# F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ: signals through files
_FCNTL_DENIED = (8, 10, 15, 1024, 1026, 1031)
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
_IOCTL_ALLOWED = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_CAPBSET_READ, PR_GET_NO_NEW_PRIVS, PR_SET_VMA
_PRCTL_ALLOWED = (3, 15, 16, 23, 39, 0x53564D41)
_ABSENT_CALLS = ("clone3", "openat2", "epoll_pwait2", "futex_waitv")
_CONDITIONAL_CALLS = (
    *("clone", "kill", "tgkill", "prlimit64", "ioctl", "prctl", "fcntl", "open", "openat", "mmap"),
)
_WRITABLE, _SHARED, _ANONYMOUS = 2, 1, 0x20
# XLA asks for a memory policy in every process; its refusal is no attempt at anything.
_UNCOUNTED = {"x86_64": (237,), "aarch64": (235,)}  # mbind
_SENDMSG = {"x86_64": 46, "aarch64": 211}
_PR_SET_SECCOMP = 22

Step = tuple[int, int, int, int]


def filter_program(pid: int, *, notifies: bool = False) -> bytes:
    """Return the filter for the process `pid`, which may send signals to itself only.

    With `notifies` a rejected call waits for the supervisor, and two calls are still allowed: to
    send it the listener, and to set the filter of `closing_filter_program`, which forbids both.
    """
    machine = _check_machine()
    calls = _TABLES[machine]
    # The numbers mean other calls in another ABI (32-bit, x32), so a foreign one ends the process.
    steps: list[Step] = [
        (_LOAD, 0, 0, _MACHINE),
        (_IS, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    for name, number in calls.items():
        if name in _CONDITIONAL_CALLS:
            steps += _steps_for_call(number, _argument_steps(name, pid))
        elif name in _ABSENT_CALLS:
            steps += _steps_for_call(number, [_deny_step(errno.ENOSYS)])
        else:
            steps += _steps_for_call(number, [_allow_step()])
    steps += [(_AT_LEAST, 0, 1, _NEWEST + 1), _deny_step(errno.ENOSYS), _deny_step(errno.EPERM)]
    if notifies:
        denied = [_deny_step(errno.EPERM)]
        uncounted = [step for n in _UNCOUNTED[machine] for step in _steps_for_call(n, denied)]
        counted = [_notify_of_denial(step) for step in steps[4:]]
        steps = [*steps[:4], *_handover_steps(machine), *uncounted, *counted]
    return _encode_steps(steps)


def closing_filter_program() -> bytes:
    """Return the filter that takes back what handing over the listener needed.

    The kernel evaluates all filters of a process and the strictest result counts.
    """
    machine = _check_machine()
    denied = [_deny_step(errno.EPERM)]
    prctl = [_load_argument(0), (_IS, 0, 1, _PR_SET_SECCOMP), *denied, _allow_step()]
    steps = [
        (_LOAD, 0, 0, _NUMBER),
        *_steps_for_call(_SENDMSG[machine], denied),
        *_steps_for_call(_TABLES[machine]["prctl"], prctl),
        _allow_step(),
    ]
    return _encode_steps(steps)


def _check_machine() -> str:
    machine = platform.machine()
    if machine not in _TABLES:
        raise OSError(errno.ENOSYS, f"no table of system calls for {machine}")
    return machine


def _handover_steps(machine: str) -> list[Step]:
    # After other arguments of prctl the accumulator holds the argument, so the number is reloaded.
    prctl = [_load_argument(0), (_IS, 0, 1, _PR_SET_SECCOMP), _allow_step()]
    reload = (_LOAD, 0, 0, _NUMBER)
    return [
        *_steps_for_call(_SENDMSG[machine], [_allow_step()]),
        *_steps_for_call(_TABLES[machine]["prctl"], [*prctl, reload]),
    ]


def _notify_of_denial(step: Step) -> Step:
    """Return a step that asks the supervisor, in the place of one that denies a call.

    ENOSYS stays: it is how a library finds out which calls a kernel has.
    """
    is_denial = step[0] == _RETURN and step[3] >> 16 == _DENY >> 16
    return (_RETURN, 0, 0, _NOTIFY) if is_denial and step[3] & 0xFFFF != errno.ENOSYS else step


def _encode_steps(steps: Sequence[Step]) -> bytes:
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _argument_steps(name: str, pid: int) -> list[Step]:
    """Return the steps for a call that is allowed with some arguments only."""
    eperm = errno.EPERM
    if name == "clone":  # threads, never processes
        return [_load_argument(0), (_HAS, 1, 0, _CLONE_THREAD), _deny_step(eperm), _allow_step()]
    if name in ("kill", "tgkill"):
        # Never SIGKILL, not even to itself: a SIGKILL that the supervisor did not send means that
        # something outside went wrong, and then the submission is not blamed.
        signal = [
            _load_argument(1 if name == "kill" else 2),
            (_IS, 0, 1, _SIGKILL),
            _deny_step(eperm),
        ]
        return [_load_argument(0), (_IS, 1, 0, pid), _deny_step(eperm), *signal, _allow_step()]
    if name == "prlimit64":
        # Read only: the kernel sends SIGKILL for a lowered RLIMIT_CPU, which looks the same. The
        # pointer to the new limit is 64 bits wide, so both halves must be zero.
        halves = [_load_argument(2), (_IS, 0, 2, 0), _load_argument(2, upper=True), (_IS, 1, 0, 0)]
        return [*halves, _deny_step(eperm), *_allow_values(0, (0, pid), eperm)]
    if name == "ioctl":
        return _allow_values(1, _IOCTL_ALLOWED, errno.ENOTTY)
    if name == "prctl":
        return _allow_values(0, _PRCTL_ALLOWED, eperm)
    if name == "fcntl":
        denied = [((_IS, 0, 1, command), _deny_step(eperm)) for command in _FCNTL_DENIED]
        return [_load_argument(1), *chain.from_iterable(denied), _allow_step()]
    if name == "mmap":  # no shared anonymous memory: it is in no process's memory figures
        shared = [_load_argument(3), (_HAS, 1, 0, _SHARED), _allow_step()]
        kinds = [(_HAS, 2, 0, _ANONYMOUS), _load_argument(2), (_HAS, 0, 1, _WRITABLE)]
        return [*shared, *kinds, _deny_step(eperm), _allow_step()]
    flags = 1 if name == "open" else 2
    return [
        _load_argument(flags),
        (_HAS, 0, 1, _WRITE_FLAGS),
        _deny_step(errno.EACCES),
        _allow_step(),
    ]


def _allow_values(position: int, values: Sequence[int], otherwise: int) -> list[Step]:
    checks = [step for value in values for step in ((_IS, 0, 1, value), _allow_step())]
    return [_load_argument(position), *checks, _deny_step(otherwise)]


def _steps_for_call(number: int, steps: list[Step]) -> list[Step]:
    """Return steps that are skipped unless this is the call."""
    return [(_IS, 0, len(steps), number), *steps]


def _load_argument(position: int, *, upper: bool = False) -> Step:
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * position + 4 * upper)  # both machines are little-endian


def _allow_step() -> Step:
    return (_RETURN, 0, 0, _ALLOW)


def _deny_step(number: int) -> Step:
    return (_RETURN, 0, 0, _DENY | number)


# ---------------------------------------------------------------------------- notified rejections

# struct seccomp_notif (id, pid, flags, call, machine, then instruction and arguments) and
# struct seccomp_notif_resp (id, value, error, flags), with the requests that read and send them.
_NOTIFICATION, _RESPONSE = struct.Struct("=QIIiI56x"), struct.Struct("=QqiI")
_RECEIVE_NOTIFICATION, _SEND_RESPONSE = 0xC0502100, 0xC0182101


@dataclass(frozen=True)
class RejectedCall:
    """One call that waits for its error."""

    notification: int
    number: int


def receive_rejected_call(listener_fd: int) -> RejectedCall | None:
    """Return a call that the filter has rejected, None if its thread has ended meanwhile."""
    buffer = bytearray(_NOTIFICATION.size)
    try:
        fcntl.ioctl(listener_fd, _RECEIVE_NOTIFICATION, buffer)
    except OSError:
        return None
    notification, _, _, number, _ = _NOTIFICATION.unpack(buffer)
    return RejectedCall(notification, number)


def deny_rejected_call(listener_fd: int, call: RejectedCall) -> None:
    """Let a rejected call fail, with the error that the filter itself would have given."""
    numbers = _TABLES[platform.machine()]
    errors = {numbers["ioctl"]: errno.ENOTTY, numbers["openat"]: errno.EACCES}
    errors[numbers.get("open", -1)] = errno.EACCES
    response = _RESPONSE.pack(call.notification, 0, -errors.get(call.number, errno.EPERM), 0)
    with contextlib.suppress(OSError):  # the thread has ended
        fcntl.ioctl(listener_fd, _SEND_RESPONSE, bytearray(response))
