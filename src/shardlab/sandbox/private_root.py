"""A private, read-only root that shows a guest what it may read. Built once, in the zygote."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from shardlab.sandbox import kernel
from shardlab.sandbox.readable_paths import is_within

_PLACES = ("/mnt", "/srv", "/media", "/opt", "/boot", "/home", "/var", "/tmp", "/run", "/root")


def own_namespaces() -> None:
    """Leave the machine's processes: the next child of this process is pid 1 of its own.

    A plain user needs a user namespace for the rest; it maps that one user to itself.
    """
    if os.geteuid() == 0:
        kernel.unshare(kernel.NEWPID)
        return
    user, group = os.getuid(), os.getgid()
    kernel.unshare(kernel.NEWUSER | kernel.NEWPID)
    for name, words in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(words)


def enter_private_root(paths: Sequence[str], hidden: Sequence[str]) -> None:
    """Exchange the machine's files, network and shared memory for a read-only few of its files."""
    kernel.unshare(kernel.NEWNS | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS)
    os.umask(0o022)
    kernel.mount(None, "/", None, kernel.REC | kernel.PRIVATE)
    base = _place(paths)
    kernel.mount("tmpfs", base, "tmpfs", kernel.NOSUID | kernel.NODEV, "size=1m,mode=755")
    for path in paths:
        _show(path, base + path)
    for path in hidden:
        if any(is_within(path, shown) for shown in paths) and os.path.exists(path):
            _cover(base + path)
    _keep_aliases(base)
    kernel.pivot_into(base)
    flags = kernel.REMOUNT | kernel.BIND | kernel.RDONLY | kernel.NOSUID | kernel.NODEV
    kernel.mount(None, "/", None, flags)


def _place(paths: Sequence[str]) -> str:
    """Return a folder that can be covered meanwhile: nothing that is needed lies in it."""
    for place in _PLACES:
        if os.path.isdir(place) and not any(is_within(path, place) for path in paths):
            return place
    raise FileNotFoundError(2, "no folder to build a root in")


def _show(path: str, target: str) -> None:
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o444))
    kernel.bind_read_only(path, target)


def _cover(target: str) -> None:
    """Put something empty where something hidden is."""
    if os.path.isdir(target):
        flags = kernel.RDONLY | kernel.NOSUID | kernel.NODEV | kernel.NOEXEC
        kernel.mount("tmpfs", target, "tmpfs", flags, "size=4k,mode=755")
    else:
        kernel.mount("/dev/null", target, None, kernel.BIND)


def _keep_aliases(base: str) -> None:
    """Keep names that are links (/lib -> usr/lib, a folder of packages reached by one)."""
    for path in ("/lib", "/lib64", *sys.path):
        real = os.path.realpath(path)
        is_alias = path.startswith("/") and real != path
        if is_alias and os.path.exists(base + real) and not os.path.lexists(base + path):
            os.makedirs(os.path.dirname(base + path), exist_ok=True)
            os.symlink(real, base + path)
