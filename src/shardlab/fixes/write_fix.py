"""Writes a proven fix into the user's file, unless the file has changed since it was read."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

from shardlab._files.atomic_write import write_atomically
from shardlab.errors import FixFileChanged, FixUnwritable
from shardlab.findings.fix_search import Fix


def write_fix(fix: Fix) -> None:
    """Replace the file by its text after the fix. Raises `FixFileChanged` or `FixUnwritable`."""
    path = Path(fix.file)
    try:
        with _only_writer(path):
            data = path.read_bytes()
            new = data[: fix.start] + fix.text.encode() + data[fix.end :]
            # The second digest also fails if the text was damaged on its way here.
            digests = hashlib.sha256(data).hexdigest(), hashlib.sha256(new).hexdigest()
            if digests != (fix.digest, fix.new_digest):
                raise FixFileChanged(
                    f"{fix.file} has changed since the fix was proven; it was not written.",
                    where=f"{fix.file}:{fix.line}",
                    fix="run the command again: the fix is then proven for the file as it is.",
                )
            # A rename needs a writable folder only; a file marked read-only stays as it is.
            with path.open("r+b"):
                pass
            write_atomically(path, new)
    except OSError as error:
        raise FixUnwritable(
            f"{fix.file} cannot be written: {error.strerror or error}.",
            where=f"{fix.file}:{fix.line}",
            fix="make it writable, or apply the output of --diff yourself.",
        ) from None


@contextlib.contextmanager
def _only_writer(path: Path) -> Iterator[None]:
    """Let one process after the other read and replace the file.

    The lock is on the file as it was opened. Who waited for it then reads the file by its name, and
    finds what the other has written.
    """
    with path.open("rb") as file:
        with contextlib.suppress(ImportError):  # not on Windows
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
