"""Files that somebody else wrote: opened without waiting, and never read beyond a limit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from itertools import islice
from pathlib import Path

from shardlab.errors import BadModel
from shardlab.layouts.nearest import nearest_name
from shardlab.records.plain_file import NotPlain, open_plain_file

_CHUNK = 1 << 20  # bytes asked for at once, whatever a header promises
_NEAR = 1_000  # entries of a folder among which a slip is looked for


@contextmanager
def open_plain(file: Path) -> Iterator[tuple[FileIO, int]]:
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
        return open_plain_file(file)
    except NotPlain:
        raise _no_file(file, "is a folder, a pipe or a device", "a file.") from None
    except FileNotFoundError:
        raise no_such_file(file) from None
    except OSError as error:
        raise _unread(file, error) from None
    except ValueError as error:  # a name with a NUL in it, or with half a character
        raise _no_file(file, f"cannot be a file: {error}", "another name.") from None


def read_bytes(opened: FileIO, n_bytes: int) -> bytes:
    """Return that many bytes, or those that there are, asked for in small parts."""
    found = bytearray()
    while len(found) < n_bytes and (part := opened.read(min(_CHUNK, n_bytes - len(found)))):
        found += part
    return bytes(found)


def read_text(file: Path, most_bytes: int) -> str:
    """Return a UTF-8 text file that is no larger than that."""
    with open_plain(file) as (opened, n_bytes):
        data = read_bytes(opened, most_bytes + 1)
    if len(data) > most_bytes:
        size = max(n_bytes, len(data))
        what = f"{file.name!r} has {size:,} bytes; such a file has at most {most_bytes:,}."
        raise BadModel(what, where=str(file), fix="a smaller file.")
    try:
        return data.decode("utf-8-sig")  # some editors write a mark before the text
    except UnicodeDecodeError as error:
        what = f"{file.name!r} is not UTF-8 text: {error.reason}."
        raise BadModel(what, where=f"{file}, byte {error.start}", fix="save it as UTF-8.") from None


def names_in(folder: Path) -> list[str]:
    """Return the names of what is in a folder, in order."""
    try:
        return sorted(each.name for each in folder.iterdir())
    except OSError as error:
        raise _unread(folder, error) from None


def no_such_file(file: Path) -> BadModel:
    """Return the error about a file that is not there, with the nearest name that is."""
    try:
        names = [each.name for each in islice(file.parent.iterdir(), _NEAR)]
    except (OSError, ValueError):
        what = f"There is no folder {str(file.parent)!r:.200}, so no {file.name!r:.200} in it."
        return BadModel(what, where=f"{file!s:.400}", fix="a path that exists.")
    near = nearest_name(file.name, names)
    fix = f"{near!r}, the nearest name there." if near else "a path that exists."
    return BadModel(f"There is no file {file.name!r:.200}.", where=f"{file!s:.400}", fix=fix)


def _unread(file: Path, error: OSError) -> BadModel:
    return _no_file(file, f"cannot be read: {error.strerror or error}", "a file that can be read.")


def _no_file(file: Path, why: str, fix: str) -> BadModel:
    return BadModel(f"{file.name!r:.200} {why}.", where=f"{file!s:.400}", fix=fix)
