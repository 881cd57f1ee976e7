"""Atomic file writes: a reader sees the old content or the new content, never a mixture."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file's content in one step, keeping its mode and its symbolic link."""
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():  # /dev/stdout and pipes cannot be replaced
        path.write_bytes(data)
        return
    # os.replace on the link would turn it into a regular file, so replace what it points to.
    target = Path(os.path.realpath(path))
    # mkstemp creates files with mode 0600; restore the mode that open() would give.
    mode = target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~_current_umask()
    # The temporary file is in the same folder: os.replace is atomic only within a file system.
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _current_umask() -> int:
    # The only way to read the umask is to set it.
    umask = os.umask(0o022)
    os.umask(umask)
    return umask
