"""A file that somebody else wrote, opened without waiting, and read up to a limit."""

from __future__ import annotations

import os
import select
import stat
from pathlib import Path

_CHUNK = 1 << 20
_PATIENCE = 10  # seconds until the first byte of a pipe
# without waiting for a pipe's writer; Windows has no such flag, and one of its own
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class NotPlain(OSError):
    """What stands there is a folder, a pipe or a device, whose end may never come."""

    def __init__(self, what: str = "it is a folder, a pipe or a device") -> None:
        super().__init__(what)


def open_plain_file(path: Path) -> int:
    """Return the number under which a file is open; `OSError` or `ValueError` if it cannot be.

    Opening a pipe that nobody writes to would never end, nor would reading /dev/zero.
    """
    number = os.open(path, _READ)
    if stat.S_ISREG(os.fstat(number).st_mode):
        return number
    os.close(number)
    raise NotPlain


def read_plain_file(path: Path, most_bytes: int) -> bytes:
    """Return what a file holds, or one byte more than allowed of a larger one.

    A pipe is read too, as `--compare <(git show main:plan.json)` is one, if somebody writes to it.
    """
    found = bytearray()
    with os.fdopen(_open_file_or_pipe(path), "rb") as file:
        # asked for in small parts, as a file of holes may say that it has any size
        while part := file.read(min(_CHUNK, most_bytes + 1 - len(found))):
            found += part
    return bytes(found)


def _open_file_or_pipe(path: Path) -> int:
    number = os.open(path, _READ)
    mode = os.fstat(number).st_mode
    if stat.S_ISREG(mode):
        return number
    if stat.S_ISFIFO(mode) and select.select([number], [], [], _PATIENCE)[0]:
        os.set_blocking(number, True)
        return number
    os.close(number)
    if stat.S_ISFIFO(mode):
        raise NotPlain(f"it is a pipe that nobody has written to for {_PATIENCE} s")
    raise NotPlain("it is a folder or a device")
