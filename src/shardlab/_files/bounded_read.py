"""A file that somebody else wrote, opened without waiting, and read up to a limit.

Files that somebody else wrote: opened without waiting, and never read beyond a limit.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from itertools import islice
from pathlib import Path

from shardlab._text.nearest import nearest_name
from shardlab.errors import InvalidModel

_CHUNK = 1 << 20
_PATIENCE = 10  # seconds until the first byte of a pipe
# without waiting for a pipe's writer; Windows has no such flag, and one of its own
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class NotRegularFile(OSError):
    """What stands there is a folder, a pipe or a device, whose end may never come."""

    def __init__(self, what: str = "it is a folder, a pipe or a device") -> None:
        super().__init__(what)


def open_without_blocking(path: Path) -> int:
    """Return the number under which a file is open; `OSError` or `ValueError` if it cannot be.

    Opening a pipe that nobody writes to would never end, nor would reading /dev/zero.
    """
    number = os.open(path, _READ)
    if stat.S_ISREG(os.fstat(number).st_mode):
        return number
    os.close(number)
    raise NotRegularFile


def read_regular_file(path: Path, most_bytes: int) -> bytes:
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
        raise NotRegularFile(f"it is a pipe that nobody has written to for {_PATIENCE} s")
    raise NotRegularFile("it is a folder or a device")


_CHUNK_disk = 1 << 20  # bytes asked for at once, whatever a header promises
_NEAR = 1_000  # entries of a folder among which a slip is looked for


@contextmanager
def open_regular_file(file: Path) -> Iterator[tuple[FileIO, int]]:
    """Open a file for reading, with its size.

    A folder, a pipe or a device is refused: opening a pipe that nobody writes to would never end.
    """
    number = _opened(file)
    with FileIO(number) as opened:
        try:
            yield opened, os.fstat(number).st_size
        except OSError as error:
            raise _unread(file, error) from None


def _opened(file: Path) -> int:
    try:
        return open_without_blocking(file)
    except NotRegularFile:
        raise _no_file(file, "is a folder, a pipe or a device", "a file.") from None
    except FileNotFoundError:
        raise file_not_found(file) from None
    except OSError as error:
        raise _unread(file, error) from None
    except ValueError as error:  # a name with a NUL in it, or with half a character
        raise _no_file(file, f"cannot be a file: {error}", "another name.") from None


def read_bounded_bytes(opened: FileIO, n_bytes: int) -> bytes:
    """Return that many bytes, or those that there are, asked for in small parts."""
    found = bytearray()
    while len(found) < n_bytes and (part := opened.read(min(_CHUNK_disk, n_bytes - len(found)))):
        found += part
    return bytes(found)


def read_bounded_text(file: Path, most_bytes: int) -> str:
    """Return a UTF-8 text file that is no larger than that."""
    with open_regular_file(file) as (opened, n_bytes):
        data = read_bounded_bytes(opened, most_bytes + 1)
    if len(data) > most_bytes:
        size = max(n_bytes, len(data))
        what = f"{file.name!r} has {size:,} bytes; such a file has at most {most_bytes:,}."
        raise InvalidModel(what, where=str(file), fix="a smaller file.")
    try:
        return data.decode("utf-8-sig")  # some editors write a mark before the text
    except UnicodeDecodeError as error:
        what = f"{file.name!r} is not UTF-8 text: {error.reason}."
        raise InvalidModel(
            what, where=f"{file}, byte {error.start}", fix="save it as UTF-8."
        ) from None


def list_folder(folder: Path) -> list[str]:
    """Return the names of what is in a folder, in order."""
    try:
        return sorted(each.name for each in folder.iterdir())
    except OSError as error:
        raise _unread(folder, error) from None


def file_not_found(file: Path) -> InvalidModel:
    """Return the error about a file that is not there, with the nearest name that is."""
    try:
        names = [each.name for each in islice(file.parent.iterdir(), _NEAR)]
    except (OSError, ValueError):
        what = f"There is no folder {str(file.parent)!r:.200}, so no {file.name!r:.200} in it."
        return InvalidModel(what, where=f"{file!s:.400}", fix="a path that exists.")
    near = nearest_name(file.name, names)
    fix = f"{near!r}, the nearest name there." if near else "a path that exists."
    return InvalidModel(f"There is no file {file.name!r:.200}.", where=f"{file!s:.400}", fix=fix)


def _unread(file: Path, error: OSError) -> InvalidModel:
    return _no_file(file, f"cannot be read: {error.strerror or error}", "a file that can be read.")


def _no_file(file: Path, why: str, fix: str) -> InvalidModel:
    return InvalidModel(f"{file.name!r:.200} {why}.", where=f"{file!s:.400}", fix=fix)
