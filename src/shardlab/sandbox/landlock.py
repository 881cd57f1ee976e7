"""Landlock: an allow-list of files for a process and its children, enforced by the kernel."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

from shardlab.sandbox import kernel

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_PATH_BENEATH = 1


def landlock_version() -> int:
    """Return the kernel's Landlock ABI version, 0 if it has none."""
    try:
        return kernel.system_call(_CREATE, None, 0, 1, name="landlock")
    except OSError:
        return 0


def create_ruleset(readable: Sequence[str]) -> int:
    """Return a descriptor of rules: files to read, folders to read and list, and nothing else.

    Everything that this kernel's Landlock handles is denied unless a rule allows it: writing,
    creating, executing, TCP, abstract sockets and signals to processes outside.
    """
    # The kernel rejects an access bit that its ABI version does not define, so each bit is added
    # only from the version on that introduced it.
    version = landlock_version()
    files = (1 << 13) - 1
    for since, bit in ((2, 13), (3, 14), (5, 15)):  # refer, truncate, ioctl on devices
        files |= 1 << bit if version >= since else 0
    network = 3 if version >= 4 else 0  # bind, connect
    scope = 3 if version >= 6 else 0  # abstract unix sockets, signals
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    attributes = struct.pack("QQQ", files, network, scope)
    fd = kernel.system_call(_CREATE, attributes, size, 0, name="landlock")
    for path in readable:
        is_folder = os.path.isdir(path)
        _allow_path(fd, path, _READ_FILE | _READ_DIR if is_folder else _READ_FILE)
    return fd


def restrict_files(ruleset_fd: int) -> None:
    """Apply rules to this process; they cannot be removed."""
    kernel.forbid_new_privileges()
    kernel.system_call(_RESTRICT, ruleset_fd, 0, name="landlock_restrict_self")


def _allow_path(ruleset_fd: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # a path that does not exist needs no rule
    try:
        rule = struct.pack("=Qi", access, fd)
        kernel.system_call(_ADD, ruleset_fd, _PATH_BENEATH, rule, 0, name=f"landlock {path}")
    finally:
        os.close(fd)
