"""Processes of this machine, as the tests see them: who descends from whom, and who is gone."""

from __future__ import annotations

import os
import time


def parents() -> dict[int, int]:
    """Return each process and its parent; a zombie counts as a process."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue  # it has ended meanwhile
    return found


def descendants(pid: int) -> list[int]:
    """Return all that a process has started, and they in turn, oldest first."""
    found, tree = [pid], parents()
    for each in found:
        found += sorted(child for child, parent in tree.items() if parent == each)
    return found[1:]


def are_gone(pids: list[int], patience: float = 10.0) -> bool:
    """Return whether none of these is left, after a moment for the kernel."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        if not set(pids) & set(parents()):
            return True
        time.sleep(0.02)
    return False


def open_files() -> list[str]:
    """Return what this process has open, without the folder that says so."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(f"{name} -> {os.readlink(f'/proc/self/fd/{name}')}")
        except OSError:
            continue
    return sorted(found)
