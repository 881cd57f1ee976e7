"""System calls that Python does not offer, each raising `OSError` where the kernel refuses.

Linux only; importing this file is harmless anywhere.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from typing import Any

NEWNS = 0x20000
NEWUTS = 0x4000000
NEWIPC = 0x8000000
NEWUSER = 0x10000000
NEWPID = 0x20000000
NEWNET = 0x40000000

RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_NOATIME, _NODIRATIME, _RELATIME = 1024, 2048, 1 << 21
_DETACH = 2

_SET_PDEATHSIG, _SET_DUMPABLE, _CAPBSET_DROP, _SET_NO_NEW_PRIVS = 1, 4, 24, 38
_SET_KEEPCAPS, _SET_SUBREAPER, _SET_SECCOMP, _SECCOMP_FILTER = 8, 36, 22, 2
_CAP_VERSION_3 = 0x20080522
DAC_READ_SEARCH = 2

_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}


@functools.cache
def libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def done(result: int, what: str) -> int:
    """Return the result of a system call; raise what errno says where it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def system_call(number: int, *arguments: Any, what: str) -> int:
    return done(libc().syscall(ctypes.c_long(number), *arguments), what)


def prctl(option: int, *arguments: int) -> int:
    padded = [*arguments, 0, 0, 0, 0][:4]
    return done(libc().prctl(option, *map(ctypes.c_ulong, padded)), f"prctl {option}")


def unshare(flags: int) -> None:
    done(libc().unshare(flags), "unshare")


def set_namespace(fd: int, kind: int) -> None:
    done(libc().setns(fd, kind), "setns")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    def text(words: str | None) -> bytes | None:
        return words.encode() if words else None

    result = libc().mount(
        text(source), target.encode(), text(kind), ctypes.c_ulong(flags), text(data)
    )
    done(result, f"mount {target}")


def bind_read_only(source: str, target: str) -> None:
    """Show a file or folder at another place, where nobody can write to it."""
    mount(source, target, None, BIND | REC)
    # Within a user namespace the flags that a mount already has must be kept.
    had, keep = os.statvfs(target).f_flag, 0
    for bit, flag in (
        (2, NOSUID),
        (4, NODEV),
        (8, NOEXEC),
        (1024, _NOATIME),
        (2048, _NODIRATIME),
        (4096, _RELATIME),
    ):
        keep |= flag if had & bit else 0
    mount(None, target, None, BIND | REMOUNT | RDONLY | NOSUID | keep)


def pivot_into(folder: str) -> None:
    """Make a mounted folder the root, and let go of the old one."""
    os.chdir(folder)
    system_call(_PIVOT_ROOT[platform.machine()], b".", b".", what="pivot_root")
    done(libc().umount2(b".", _DETACH), "umount")
    os.chdir("/")


def die_with_parent() -> None:
    prctl(_SET_PDEATHSIG, 9)


def adopt_orphans() -> None:
    prctl(_SET_SUBREAPER, 1)


def keep_secret() -> None:
    """No core dump, no ptrace, and /proc/PID is root's."""
    prctl(_SET_DUMPABLE, 0)


def no_new_privileges() -> None:
    prctl(_SET_NO_NEW_PRIVS, 1)


def keep_capabilities() -> None:
    """Let capabilities outlive the next change of user."""
    prctl(_SET_KEEPCAPS, 1)


def drop_bound(keep: int = 0) -> None:
    """Make every capability but those in `keep` (a bit mask) impossible to gain again."""
    for number in range(64):
        if not keep >> number & 1 and libc().prctl(_CAPBSET_DROP, ctypes.c_ulong(number)) < 0:
            return  # not privileged, or past the last one: there is nothing to drop


def set_capabilities(keep: int = 0) -> None:
    """Hold the capabilities in `keep` and no others."""
    header = (ctypes.c_uint32 * 2)(_CAP_VERSION_3, 0)
    # effective, permitted, inheritable; then the same for the upper half
    data = (ctypes.c_uint32 * 6)(keep, keep, 0, 0, 0, 0)
    done(libc().capset(header, data), "capset")


def set_filter(program: bytes) -> None:
    """Set a seccomp filter of classic BPF instructions for this process, for good."""

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    code = ctypes.create_string_buffer(program, len(program))
    filled = Program(len(program) // 8, ctypes.addressof(code))
    no_new_privileges()
    result = libc().prctl(
        _SET_SECCOMP,
        ctypes.c_ulong(_SECCOMP_FILTER),
        ctypes.byref(filled),
        ctypes.c_ulong(0),
        ctypes.c_ulong(0),
    )
    done(result, "seccomp")
