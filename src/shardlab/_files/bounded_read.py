"""Reads files of unknown origin: opening never blocks, and no read exceeds its limit."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from itertools import islice
from pathlib import Path

from shardlab._text.nearest import nearest_file_name
from shardlab.errors import InvalidModel

_CHUNK_BYTES = 1 << 20  # bytes per read, whatever size a header claims
_PIPE_TIMEOUT = 10  # seconds until the first byte of a pipe
_MAX_SUGGESTIONS = 1_000  # entries of a folder that are compared with a misspelled name
# O_NONBLOCK: opening a pipe without a writer would block. Windows lacks it, and needs O_BINARY.
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class NotRegularFile(OSError):
    """The path is a folder, a pipe or a device, which may have no end."""

    def __init__(self, reason: str = "it is a folder, a pipe or a device") -> None:
        super().__init__(reason)


def open_without_blocking(path: Path) -> int:
    """Return a file descriptor of a regular file; raises `OSError` or `ValueError`.

    Opening a pipe without a writer would block forever, and reading /dev/zero would never end.
    """
    descriptor = os.open(path, _READ_FLAGS)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise NotRegularFile


def read_regular_file(path: Path, max_bytes: int) -> bytes:
    """Return the content of a file; of a larger one, `max_bytes` + 1 bytes.

    A pipe with a writer is read too, because `--compare <(git show main:plan.json)` passes one.
    """
    content = bytearray()
    with os.fdopen(_open_file_or_pipe(path), "rb") as file:
        # In chunks: a sparse file can claim any size, and one large read would allocate it.
        while chunk := file.read(min(_CHUNK_BYTES, max_bytes + 1 - len(content))):
            content += chunk
    return bytes(content)


def _open_file_or_pipe(path: Path) -> int:
    descriptor = os.open(path, _READ_FLAGS)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    if stat.S_ISFIFO(mode) and select.select([descriptor], [], [], _PIPE_TIMEOUT)[0]:
        os.set_blocking(descriptor, True)
        return descriptor
    os.close(descriptor)
    if stat.S_ISFIFO(mode):
        raise NotRegularFile(f"it is a pipe without data for {_PIPE_TIMEOUT} s")
    raise NotRegularFile("it is a folder or a device")


@contextmanager
def open_regular_file(path: Path) -> Iterator[tuple[FileIO, int]]:
    """Open a regular file for reading; yields the file and its size.

    Errors, also those of later reads, are raised as `InvalidModel`.
    """
    descriptor = _open_model_file(path)
    with FileIO(descriptor) as file:
        try:
            yield file, os.fstat(descriptor).st_size
        except OSError as error:
            raise _unreadable_error(path, error) from None


def _open_model_file(path: Path) -> int:
    try:
        return open_without_blocking(path)
    except NotRegularFile:
        raise _file_error(path, "is a folder, a pipe or a device", "a file.") from None
    except FileNotFoundError:
        raise file_not_found_error(path) from None
    except OSError as error:
        raise _unreadable_error(path, error) from None
    except ValueError as error:  # the name contains a NUL or a lone surrogate
        raise _file_error(path, f"is not a valid file name: {error}", "another name.") from None


def read_bounded_bytes(file: FileIO, n_bytes: int) -> bytes:
    """Return `n_bytes` bytes, or fewer at the end of the file."""
    content = bytearray()
    while len(content) < n_bytes:
        # In chunks: `n_bytes` can come from a header, and one large read would allocate it.
        chunk = file.read(min(_CHUNK_BYTES, n_bytes - len(content)))
        if not chunk:
            break
        content += chunk
    return bytes(content)


def read_bounded_text(path: Path, max_bytes: int) -> str:
    """Return a UTF-8 text file of at most `max_bytes` bytes."""
    with open_regular_file(path) as (file, n_bytes):
        data = read_bounded_bytes(file, max_bytes + 1)
    if len(data) > max_bytes:
        size = max(n_bytes, len(data))
        message = (
            f"{path.name!r} has {size:,} bytes; the limit for this kind of file is {max_bytes:,}."
        )
        raise InvalidModel(message, where=str(path), fix="a smaller file.")
    try:
        return data.decode("utf-8-sig")  # some editors write a byte-order mark
    except UnicodeDecodeError as error:
        message = f"{path.name!r} is not UTF-8 text: {error.reason}."
        where = f"{path}, byte {error.start}"
        raise InvalidModel(message, where=where, fix="save it as UTF-8.") from None


def list_folder(folder: Path) -> list[str]:
    """Return the sorted names of a folder's entries."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise _unreadable_error(folder, error) from None


def file_not_found_error(path: Path) -> InvalidModel:
    """Return the error for a missing file, with the nearest name that exists."""
    # Cut to 200 and 400 characters: names come from files that someone else wrote.
    where = f"{path!s:.400}"
    try:
        names = [entry.name for entry in islice(path.parent.iterdir(), _MAX_SUGGESTIONS)]
    except (OSError, ValueError):
        message = f"There is no folder {str(path.parent)!r:.200}, so no file {path.name!r:.200}."
        return InvalidModel(message, where=where, fix="a path that exists.")
    nearest = nearest_file_name(path.name, names)
    message = f"There is no file {path.name!r:.200}."
    if nearest is not None:
        message += f" Did you mean {nearest!r:.200}?"
    return InvalidModel(message, where=where, fix="a path that exists.")


def _unreadable_error(path: Path, error: OSError) -> InvalidModel:
    return _file_error(path, f"cannot be read: {error.strerror or error}", "a readable file.")


def _file_error(path: Path, reason: str, fix: str) -> InvalidModel:
    return InvalidModel(f"{path.name!r:.200} {reason}.", where=f"{path!s:.400}", fix=fix)
