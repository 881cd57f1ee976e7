"""The kernel's figures of a running process, from /proc: time, threads, memory."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass

_MEMORY_LINES = re.compile(rb"^(?:VmRSS|VmSwap|VmPTE):\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class ProcessStat:
    """The figures that limits are about."""

    flags: int  # of the first thread
    cpu_seconds: float
    n_threads: int
    memory_bytes: int  # in use, with page tables


class ProcessFigures:
    """The folder of one process in /proc."""

    def __init__(self, folder_fd: int) -> None:
        self._folder_fd = folder_fd

    def read(self) -> ProcessStat | None:
        """Return the figures, None if the process is gone."""
        try:
            # "pid (name) state ...": the process chooses its name, parentheses included, so the
            # fields are counted from the last one.
            fields = _read_file("stat", self._folder_fd).rpartition(b")")[2].split()
            return ProcessStat(
                flags=int(fields[6]),
                cpu_seconds=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
                n_threads=int(fields[17]),
                memory_bytes=self._memory_bytes(),
            )
        except (OSError, ValueError, IndexError):
            return None

    def _memory_bytes(self) -> int:
        """Return the memory in use, swapped out or taken by page tables.

        A first thread that has exited has no memory any more as far as the kernel shows, while
        those of its process go on. Then one of the other threads has the figures.
        """
        n_kilobytes = _memory_kilobytes("status", self._folder_fd)
        if n_kilobytes is None:
            with contextlib.suppress(OSError):
                for thread in self._list_threads():
                    n_kilobytes = _memory_kilobytes(f"task/{thread}/status", self._folder_fd)
                    if n_kilobytes is not None:
                        break
        return 1024 * (n_kilobytes or 0)

    def _list_threads(self) -> list[str]:
        fd = os.open("task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._folder_fd)
        try:
            return os.listdir(fd)
        finally:
            os.close(fd)


def open_process_figures(proc_fd: int, pid: int) -> ProcessFigures | None:
    """Return the figures of a process, None if there is no /proc or the process is gone."""
    if proc_fd < 0:
        return None
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        return ProcessFigures(os.open(str(pid), flags, dir_fd=proc_fd))
    except OSError:
        return None


def _memory_kilobytes(path: str, folder_fd: int) -> int | None:
    try:
        numbers = _MEMORY_LINES.findall(_read_file(path, folder_fd))
    except OSError:
        return None
    return sum(map(int, numbers)) if numbers else None


def _read_file(path: str, folder_fd: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder_fd)
    try:
        return os.read(fd, 1 << 14)
    finally:
        os.close(fd)
