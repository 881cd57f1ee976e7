"""The file of the database, before SQLAlchemy is loaded."""

from __future__ import annotations

import os
from pathlib import Path

from shardlab.errors import DatabaseUnusable

DATABASE_FILE = "server.db"


def create_database_file(folder: Path) -> Path:
    """Create the folder and the file if they do not exist. Raises `DatabaseUnusable`."""
    path = folder / DATABASE_FILE
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)  # readable by the user only
        # The folder may have been there, open to all. SQLite gives its other files the same mode.
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT, 0o600))
    except OSError as error:
        raise unusable_database(path, error.strerror) from error
    return path


def unusable_database(path: Path, reason: str | None) -> DatabaseUnusable:
    """Return the error that says why the database cannot be used."""
    return DatabaseUnusable(
        f"The database of the server cannot be used: {reason}.",
        where=str(path),
        fix="make the folder writable, or set SHARDLAB_DATA to another folder.",
    )
