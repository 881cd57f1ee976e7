"""Processes of this machine: who descends from whom, which have ended, what is open."""

from __future__ import annotations

import os
import time
from pathlib import Path

PATIENCE = 300.0  # seconds; everything here takes milliseconds on an idle machine


def list_parents() -> dict[int, int]:
    """Return each process and its parent; a zombie counts as a process."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue  # it has ended meanwhile
    return parents


def list_descendants(pid: int) -> list[int]:
    """Return everything that a process has started, and they in turn, oldest first."""
    pids, parents = [pid], list_parents()
    for ancestor in pids:
        pids += sorted(child for child, parent in parents.items() if parent == ancestor)
    return pids[1:]


def have_ended(pids: list[int]) -> bool:
    """Wait until none of these processes is left, and return whether that happened."""
    return wait_until(lambda: not set(pids) & set(list_parents()))


def wait_until(condition, patience: float = PATIENCE) -> bool:
    """Wait for an event, and return whether it happened."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def process_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def list_open_files() -> list[str]:
    """Return what this process has open, without the folder that lists it."""
    files = []
    for name in os.listdir("/proc/self/fd"):
        try:
            files.append(f"{name} -> {os.readlink(f'/proc/self/fd/{name}')}")
        except OSError:
            continue
    return sorted(files)
