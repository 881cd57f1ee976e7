"""Linux system calls that Python has no function for; each raises `OSError` if it fails.

Importing this file is safe on every system.
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
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3


@functools.cache
def libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def check_result(result: int, name: str) -> int:
    """Return the result of a system call; raise `OSError` from errno if it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def system_call(number: int, *arguments: Any, name: str) -> int:
    return check_result(libc().syscall(ctypes.c_long(number), *arguments), name)


def prctl(option: int, *arguments: int) -> int:
    # The kernel rejects some options unless all unused arguments are zero.
    padded = [*arguments, 0, 0, 0, 0][:4]
    return check_result(libc().prctl(option, *map(ctypes.c_ulong, padded)), f"prctl {option}")


def unshare(flags: int) -> None:
    check_result(libc().unshare(flags), "unshare")


def set_namespace(fd: int, kind: int) -> None:
    check_result(libc().setns(fd, kind), "setns")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    def encode(text: str | None) -> bytes | None:
        return text.encode() if text else None

    result = libc().mount(
        encode(source), target.encode(), encode(kind), ctypes.c_ulong(flags), encode(data)
    )
    check_result(result, f"mount {target}")


def bind_read_only(source: str, target: str) -> None:
    """Mount a file or folder a second time, without write access."""
    mount(source, target, None, BIND | REC)
    # In a user namespace the kernel rejects a remount that would clear one of the flags that the
    # original mount has, so they are read back and repeated.
    present, keep = os.statvfs(target).f_flag, 0
    for bit, flag in (
        (2, NOSUID),
        (4, NODEV),
        (8, NOEXEC),
        (1024, _NOATIME),
        (2048, _NODIRATIME),
        (4096, _RELATIME),
    ):
        keep |= flag if present & bit else 0
    mount(None, target, None, BIND | REMOUNT | RDONLY | NOSUID | keep)


def pivot_into(folder: str) -> None:
    """Make a mounted folder the root, and unmount the old root."""
    os.chdir(folder)
    # pivot_root(".", ".") stacks the old root over the new one at the same path, where umount2
    # reaches it without a folder to put it in; see pivot_root(2).
    system_call(_PIVOT_ROOT[platform.machine()], b".", b".", name="pivot_root")
    check_result(libc().umount2(b".", _DETACH), "umount")
    os.chdir("/")


def die_with_parent() -> None:
    prctl(_SET_PDEATHSIG, 9)


def adopt_orphans() -> None:
    prctl(_SET_SUBREAPER, 1)


def forbid_inspection() -> None:
    """Allow no core dump and no ptrace, and make /proc/PID belong to root."""
    prctl(_SET_DUMPABLE, 0)


def forbid_new_privileges() -> None:
    prctl(_SET_NO_NEW_PRIVS, 1)


def keep_capabilities_over_setuid() -> None:
    """Do not clear the capabilities at the next change of user."""
    prctl(_SET_KEEPCAPS, 1)


def drop_bounding_set(keep: int = 0) -> None:
    """Drop every capability except those in `keep` (a bit mask), so that none can be regained."""
    for number in range(64):
        if not keep >> number & 1 and libc().prctl(_CAPBSET_DROP, ctypes.c_ulong(number)) < 0:
            return  # not privileged, or past the last capability: there is nothing to drop


def set_capabilities(keep: int = 0) -> None:
    """Have the capabilities in `keep` and no others."""
    header = (ctypes.c_uint32 * 2)(_CAP_VERSION_3, 0)
    # effective, permitted, inheritable; then the same for the upper half
    data = (ctypes.c_uint32 * 6)(keep, keep, 0, 0, 0, 0)
    check_result(libc().capset(header, data), "capset")


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def _filter_program(program: bytes) -> tuple[_FilterProgram, Any]:
    """Return the kernel's structure, and the buffer that must live as long as it."""
    code = ctypes.create_string_buffer(program, len(program))
    return _FilterProgram(len(program) // 8, ctypes.addressof(code)), code


def set_seccomp_filter(program: bytes) -> None:
    """Set a seccomp filter of classic BPF instructions; it cannot be removed."""
    forbid_new_privileges()
    add_seccomp_filter(program)


def add_seccomp_filter(program: bytes) -> None:
    """Set a filter beside those that are set already, without any other system call."""
    descriptor, _code = _filter_program(program)
    result = libc().prctl(
        _SET_SECCOMP,
        ctypes.c_ulong(_SECCOMP_FILTER),
        ctypes.byref(descriptor),
        ctypes.c_ulong(0),
        ctypes.c_ulong(0),
    )
    check_result(result, "seccomp")


def set_notifying_filter(program: bytes) -> int:
    """Set a seccomp filter, and return the descriptor that its notifications are read from."""
    descriptor, _code = _filter_program(program)
    forbid_new_privileges()
    return system_call(
        _SECCOMP[platform.machine()],
        ctypes.c_long(_SET_MODE_FILTER),
        ctypes.c_long(_NEW_LISTENER),
        ctypes.byref(descriptor),
        name="seccomp",
    )
