"""The files that a sandboxed process can read: Python, its packages, the system's libraries.

Hidden folders can be inside readable ones (the solutions of a catalogue are inside its package), so
a folder that contains one is replaced by all its other entries:

>>> import tempfile, pathlib
>>> top = pathlib.Path(tempfile.mkdtemp()).resolve()
>>> for name in ("a", "b/open", "b/closed"):
...     (top / name).mkdir(parents=True)
>>> readable, unlisted = exclude_hidden([str(top)], [str(top / "b/closed")])
>>> sorted(p[len(str(top)):] for p in readable), sorted(p[len(str(top)):] for p in unlisted)
(['/a', '/b/open'], ['', '/b'])

At level A these files are mounted into a private, read-only root; Landlock allows the same ones.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import os
import sys
import sysconfig
from collections.abc import Sequence

from shardlab.sandbox import kernel

_SYSTEM_PATHS = (
    "/usr/lib",
    "/usr/lib64",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/dev/null",
    "/dev/urandom",
    # XNNPACK and XLA read both, and print warnings into the program's output if they cannot.
    "/proc/cpuinfo",
    "/sys/devices/system/cpu",
)
_MOUNT_POINTS = (
    "/mnt",
    "/srv",
    "/media",
    "/opt",
    "/boot",
    "/home",
    "/var",
    "/tmp",
    "/run",
    "/root",
)


def exclude_hidden(
    paths: Sequence[str], hidden_paths: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return paths to allow so that nothing hidden is, and the folders that cannot be listed.

    A rule of Landlock is about everything below a folder. So a right to list the folder above a
    hidden one would be a right to list the hidden one, and nobody gets it.
    """
    readable: list[str] = []
    unlisted: list[str] = []
    for path in paths:
        if any(is_within(path, hidden) for hidden in hidden_paths):
            continue
        if not any(is_within(hidden, path) for hidden in hidden_paths):
            readable.append(path)
            continue
        unlisted.append(path)
        entries = [os.path.join(path, name) for name in sorted(os.listdir(path))]
        # Symbolic links are not followed: their target is readable only if it is allowed itself.
        plain = [entry for entry in entries if not os.path.islink(entry)]
        readable_below, unlisted_below = exclude_hidden(plain, hidden_paths)
        readable += readable_below
        unlisted += unlisted_below
    return readable, unlisted


def remember_folders(folders: Sequence[str]) -> None:
    """Let Python remember what is in these folders, for processes that cannot list them.

    Both the import system and importlib.metadata list a folder once and then look into their memory
    of it until the folder changes. This is called before each fork, so a package that was installed
    meanwhile is known too.
    """
    for folder in folders:
        importlib.machinery.PathFinder.find_spec("no_module_of_this_name", [folder])
    if folders:
        list(importlib.metadata.distributions(name="no-package-of-this-name", path=list(folders)))


def find_runtime_paths() -> list[str]:
    """Return the folders that Python and its packages are loaded from, none inside another."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [sysconfig.get_path(name) for name in names]
    folders.append(os.path.join(sys.base_prefix, "lib"))
    paths = {os.path.realpath(p) for p in (*folders, *_find_imported_paths()) if p}
    paths |= {p for p in _SYSTEM_PATHS if not os.path.islink(p)}
    # A path may lead through links (/lib -> /usr/lib); rules apply to where it ends.
    paths |= {os.path.realpath(p) for p in _SYSTEM_PATHS}
    existing = sorted(p for p in paths if os.path.exists(p))
    return [p for p in existing if not any(q != p and is_within(p, q) for q in existing)]


def _find_imported_paths() -> set[str]:
    """Return the package folders of sys.path, and of its other folders only what was imported.

    A user's own folder (an editable install, PYTHONPATH) holds more than a program should read.
    """
    roots = [os.path.realpath(entry) for entry in sys.path if entry and os.path.isdir(entry)]
    paths = {root for root in roots if root.endswith(("site-packages", "dist-packages"))}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." in name or not file:
            continue
        file = os.path.realpath(file)
        is_package = os.path.basename(file) == "__init__.py"
        paths.add(os.path.dirname(file) if is_package else file)
    return paths


def is_within(path: str, folder: str) -> bool:
    """Return whether a path is a folder, or inside it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


# ------------------------------------------------------------------------------ the private root


def create_pid_namespace() -> None:
    """Make the next child of this process pid 1 of its own namespace.

    A plain user needs a user namespace for this; it maps that one user to itself.
    """
    if os.geteuid() == 0:
        kernel.unshare(kernel.NEWPID)
        return
    user, group = os.getuid(), os.getgid()
    kernel.unshare(kernel.NEWUSER | kernel.NEWPID)
    # The kernel accepts a gid_map of a plain user only after setgroups is denied.
    for name, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(content)


def enter_private_root(paths: Sequence[str], hidden_paths: Sequence[str]) -> None:
    """Leave the machine's files, network and shared memory for a read-only selection of files."""
    kernel.unshare(kernel.NEWNS | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS)
    os.umask(0o022)
    # Private propagation first: nothing that is mounted below may appear outside.
    kernel.mount(None, "/", None, kernel.REC | kernel.PRIVATE)
    root = _choose_mount_point(paths)
    kernel.mount("tmpfs", root, "tmpfs", kernel.NOSUID | kernel.NODEV, "size=1m,mode=755")
    for path in paths:
        _mount_read_only(path, root + path)
    for path in hidden_paths:
        if any(is_within(path, visible) for visible in paths) and os.path.exists(path):
            _cover_path(root + path)
    _create_links(root)
    kernel.pivot_into(root)
    flags = kernel.REMOUNT | kernel.BIND | kernel.RDONLY | kernel.NOSUID | kernel.NODEV
    kernel.mount(None, "/", None, flags)


def _choose_mount_point(paths: Sequence[str]) -> str:
    """Return a folder to build the root in: one that contains none of the paths."""
    for folder in _MOUNT_POINTS:
        if os.path.isdir(folder) and not any(is_within(path, folder) for path in paths):
            return folder
    raise FileNotFoundError(2, "no folder to build a root in")


def _mount_read_only(path: str, target: str) -> None:
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o444))
    kernel.bind_read_only(path, target)


def _cover_path(target: str) -> None:
    """Mount something empty over a hidden file or folder."""
    if os.path.isdir(target):
        flags = kernel.RDONLY | kernel.NOSUID | kernel.NODEV | kernel.NOEXEC
        kernel.mount("tmpfs", target, "tmpfs", flags, "size=4k,mode=755")
    else:
        kernel.mount("/dev/null", target, None, kernel.BIND)


def _create_links(root: str) -> None:
    """Repeat the symbolic links to visible paths (/lib -> usr/lib, entries of sys.path)."""
    for path in ("/lib", "/lib64", *sys.path):
        target = os.path.realpath(path)
        is_link = path.startswith("/") and target != path
        if is_link and os.path.exists(root + target) and not os.path.lexists(root + path):
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            os.symlink(target, root + path)
