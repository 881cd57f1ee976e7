"""Memory limits by cgroup v2: the kernel counts all that a process causes, and ends it exactly.

The figures of /proc leave out page tables, kernel memory and what is charged to nobody. A group of
its own counts them. It needs a folder of the cgroup tree that this user may write to and whose
children have the memory controller: a systemd user session has one (the parent of its scope), a
container may. Nothing is enabled or moved except the sandboxed process itself.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

_NAME = "shardlab-"


def find_group_parent(proc: Path = Path("/proc/self")) -> Path | None:
    """Return the folder in which groups with a memory limit can be created, None without one."""
    mount = _find_mount(proc / "mountinfo")
    path = _find_own_path(proc / "cgroup")
    if mount is None or path is None:
        return None
    own_group = mount / path.lstrip("/")
    # A group that has processes cannot have children with controllers (except for the root), so
    # usually the parent is the one.
    candidates = [own_group] if own_group == mount else [own_group, own_group.parent]
    return next((folder for folder in candidates if _is_usable(folder)), None)


def _find_mount(mountinfo: Path) -> Path | None:
    with contextlib.suppress(OSError, IndexError):
        for line in mountinfo.read_text().splitlines():
            fields, _, kind = line.partition(" - ")
            if kind.split()[0] == "cgroup2":
                return Path(fields.split()[4])
    return None


def _find_own_path(cgroup: Path) -> str | None:
    """Return the path of this process in the unified tree: the line that begins with 0::."""
    with contextlib.suppress(OSError):
        for line in cgroup.read_text().splitlines():
            if line.startswith("0::"):
                return line[3:]
    return None


def _is_usable(folder: Path) -> bool:
    """Try it: permissions alone do not say whether a limit can be set."""
    try:
        if "memory" not in (folder / "cgroup.subtree_control").read_text().split():
            return False
        trial = folder / _new_name()
        trial.mkdir()
        try:
            (trial / "memory.max").write_text("max")
            return os.access(trial / "cgroup.procs", os.W_OK)
        finally:
            _remove_group(trial)
    except OSError:
        return False


def _new_name() -> str:
    return f"{_NAME}{os.getpid()}-{secrets.token_hex(6)}"


def _remove_group(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def open_group_parent() -> int:
    """Return a descriptor of the folder for groups, -1 without one; remove what is left in it.

    A supervisor that was killed leaves its group behind. One with processes cannot be removed.
    """
    parent = find_group_parent()
    if parent is None:
        return -1
    with contextlib.suppress(OSError):
        for folder in parent.glob(f"{_NAME}*"):
            _remove_group(folder)
        return os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return -1


class MemoryGroup:
    """The group of one sandboxed process. Paths are relative to descriptors, because the supervisor
    has entered a root in which there is no cgroup tree.
    """

    def __init__(self, parent_fd: int, max_bytes: int) -> None:
        self._parent_fd, self._name = parent_fd, _new_name()
        os.mkdir(self._name, dir_fd=parent_fd)
        self._fd = os.open(self._name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=parent_fd)
        self._write("memory.max", str(max_bytes))
        with contextlib.suppress(OSError):  # without swap accounting there is no such file
            self._write("memory.swap.max", "0")
        self._write("memory.oom.group", "1")

    def enter(self) -> None:
        """Move this process into the group; what it has allocated before is charged elsewhere."""
        self._write("cgroup.procs", "0")

    def memory_bytes(self) -> int:
        """Return the memory that is charged to the group now, kernel memory included."""
        return int(self._read("memory.current") or 0)

    def has_exceeded_limit(self) -> bool:
        """Return whether the kernel has ended the process for its memory."""
        events = dict(line.split() for line in self._read("memory.events").splitlines())
        return int(events.get("oom_kill", 0)) > 0

    def close(self) -> None:
        """Remove the group; the process must have ended."""
        os.close(self._fd)
        with contextlib.suppress(OSError):
            os.rmdir(self._name, dir_fd=self._parent_fd)

    def _write(self, name: str, text: str) -> None:
        fd = os.open(name, os.O_WRONLY, dir_fd=self._fd)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)

    def _read(self, name: str) -> str:
        try:
            fd = os.open(name, os.O_RDONLY, dir_fd=self._fd)
        except OSError:
            return ""
        try:
            return os.read(fd, 4096).decode()
        except OSError:
            return ""
        finally:
            os.close(fd)


def create_memory_group(parent_fd: int, max_bytes: int) -> MemoryGroup | None:
    """Return a new group, None where there is none; /proc is read instead."""
    if parent_fd < 0:
        return None
    try:
        return MemoryGroup(parent_fd, max_bytes)
    except OSError:
        return None
