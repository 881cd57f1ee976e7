"""Writes a file so that a reader finds the old content or the new, never a part."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that whoever reads it finds the old one or the new one, never a part."""
    if path.exists() and not path.is_file():  # /dev/stdout and pipes cannot be replaced
        path.write_text(text, encoding="utf-8")
        return
    target = Path(os.path.realpath(path))  # a link stays a link
    mode = target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~_umask()
    number, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _umask() -> int:
    old = os.umask(0o022)
    os.umask(old)
    return old
