"""The secret of local mode: made at the first start, and stored in the data folder."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from pathlib import Path

SECRET_FILE = "local_secret"
_N_BYTES = 32
_LOG = logging.getLogger("shardlab.server")


def read_local_secret(data_folder: Path) -> bytes:
    """Return the secret that signs CSRF tokens, the same after every restart.

    A folder that cannot be written to gives one for this start alone.
    """
    path = data_folder / SECRET_FILE
    try:
        return _read(path) or _create(path)
    except OSError as error:
        _LOG.warning("%s: %s; pages must be reloaded after a restart", path, error.strerror)
        return secrets.token_bytes(_N_BYTES)


def _read(path: Path) -> bytes | None:
    """Return the stored secret; None if there is none, or something else is in its place."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(content) != _N_BYTES:
        path.unlink()
        return None
    path.chmod(0o600)
    return content


def _create(path: Path) -> bytes:
    # Written under another name first: a server that starts at the same moment must not read half
    # of it, and a link, unlike a rename, does not replace the one that another has made.
    draft = path.with_name(f".{SECRET_FILE}-{secrets.token_hex(8)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(handle, "wb") as file:
            file.write(secrets.token_bytes(_N_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
    return path.read_bytes()
