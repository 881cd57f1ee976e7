"""The SQLite file of the progress store: its location, its schema, and connections to it.

`connect` yields a connection in one transaction, or raises a `StoreError` with a fix.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shardlab.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreNewerVersion,
    StoreUnwritable,
)

APPLICATION_ID = 0x5348_4C42  # "SHLB": distinguishes our file from another program's database

# Migration n leads from schema version n to n + 1. A released migration is never edited, only
# followed by another: files in the field were created with it.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # Each source is stored once: `learn` judges on every save, and many saves are identical.
        """CREATE TABLE source (
            digest TEXT PRIMARY KEY,
            body BLOB NOT NULL
        )""",
        """CREATE TABLE submission (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            catalogue TEXT NOT NULL,
            problem TEXT NOT NULL,
            content_version INTEGER NOT NULL,
            kind TEXT NOT NULL CHECK (kind IN ('run', 'submit')),
            seed INTEGER NOT NULL,
            source TEXT NOT NULL REFERENCES source (digest),
            handed_in TEXT NOT NULL
        )""",
        "CREATE INDEX submission_of_problem ON submission (catalogue, problem)",
        """CREATE TABLE judgement (
            submission INTEGER PRIMARY KEY REFERENCES submission (number),
            code TEXT NOT NULL,
            passed INTEGER NOT NULL,
            counts INTEGER NOT NULL,
            judged TEXT NOT NULL,
            body BLOB NOT NULL
        )""",
        """CREATE TABLE progress (
            catalogue TEXT NOT NULL,
            problem TEXT NOT NULL,
            path TEXT NOT NULL DEFAULT '',
            started TEXT NOT NULL DEFAULT '',
            hints INTEGER NOT NULL DEFAULT 0,
            solution_asked INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (catalogue, problem)
        )""",
    ),
    (
        # What is in the browser's editor and not submitted yet. A solution file of the terminal
        # is no draft: it is a file of the user.
        """CREATE TABLE draft (
            catalogue TEXT NOT NULL,
            problem TEXT NOT NULL,
            source TEXT NOT NULL,
            saved TEXT NOT NULL,
            PRIMARY KEY (catalogue, problem)
        )""",
    ),
)


def schema_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def is_progress_store(connection: sqlite3.Connection) -> bool:
    """Return whether a database is a progress store, or still empty."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (n_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return bool(application == APPLICATION_ID or n_tables == 0)


def migrate_database(
    connection: sqlite3.Connection,
    migrations: Sequence[Sequence[str]] = MIGRATIONS,
    to: int | None = None,
) -> None:
    """Bring a database to the newest schema, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        # The version is read inside the transaction: another process may have migrated meanwhile.
        for migration in migrations[schema_version(connection) : to]:
            for statement in migration:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(migrations) if to is None else to}")
        connection.execute("COMMIT")
    except BaseException:
        # On a full disk SQLite has rolled back by itself; a second one would hide the reason.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


DATA_VARIABLE = "SHARDLAB_DATA"


def data_folder(environ: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path:
    """Return the folder of the progress store; `SHARDLAB_DATA` overrides it.

    >>> data_folder({"SHARDLAB_DATA": "/tmp/mine"}).as_posix()
    '/tmp/mine'
    >>> data_folder({"XDG_DATA_HOME": "/home/ada/data"}, "linux").as_posix()
    '/home/ada/data/shardlab'

    A relative `XDG_DATA_HOME` is ignored, as the XDG specification requires.
    """
    variables = os.environ if environ is None else environ
    try:
        return _choose_data_folder(variables, platform)
    except RuntimeError:  # of pathlib: HOME is not set, and the user has no passwd entry
        raise StoreUnwritable(
            "There is no home folder for the progress store: HOME is not set, and this user has no "
            "entry in the user database.",
            where=f"user {os.getuid()}" if hasattr(os, "getuid") else "this user",
            fix=f"set {DATA_VARIABLE} to a folder that you can write to, or set HOME.",
        ) from None


def _choose_data_folder(variables: Mapping[str, str], platform: str) -> Path:
    if variables.get(DATA_VARIABLE):
        return Path(variables[DATA_VARIABLE]).expanduser().absolute()
    if platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "shardlab"
    if platform == "win32" and variables.get("LOCALAPPDATA"):
        return Path(variables["LOCALAPPDATA"]) / "shardlab"
    data = variables.get("XDG_DATA_HOME", "")
    return (Path(data) if Path(data).is_absolute() else Path.home() / ".local/share") / "shardlab"


LOCK_SECONDS = 10.0  # timeout for the lock of another process; a write takes milliseconds


@contextlib.contextmanager
def connect(
    path: Path, lock_seconds: float | None = None, *, is_read: bool = False
) -> Iterator[sqlite3.Connection]:
    """Yield a connection inside one transaction, which is committed as a whole or not at all.

    A transaction that only reads takes no lock: SQLite's write-ahead log shows it one state, and
    200 readers do not wait for each other.

    One short connection per operation: no lock is held while the user thinks, threads share no
    connection, and after a kill SQLite rolls back from its own log.
    """
    try:
        connection = _open_database(path, LOCK_SECONDS if lock_seconds is None else lock_seconds)
        try:
            connection.execute("BEGIN" if is_read else "BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        finally:
            connection.close()  # rolls back what was not committed
    except sqlite3.Error as error:
        raise _store_error(error, path) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full_error(path) from error
        raise _unwritable_error(path, error.strerror or str(error)) from error


@contextlib.contextmanager
def hold_log_open(path: Path) -> Iterator[None]:
    """Keep SQLite's write-ahead log between the operations of a long-running process.

    The last connection that closes deletes the log and its index, and the next one creates them
    again: half of the time of a read. An idle connection holds no lock. If the store cannot be
    opened there is none; the first operation reports why, so nothing is checked or moved here.
    """
    connection = None
    with contextlib.suppress(sqlite3.Error, OSError, StoreError):
        if not path.exists():
            with connect(path, is_read=True):
                pass  # creates the tables
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version").fetchone()  # the first read opens the log
    try:
        yield
    finally:
        if connection is not None:
            connection.close()


def _open_database(path: Path, lock_seconds: float) -> sqlite3.Connection:
    path.parent.mkdir(0o700, parents=True, exist_ok=True)  # XDG: readable by the user only
    # isolation_level=None: the sqlite3 module begins no transaction of its own.
    connection = sqlite3.connect(path, timeout=lock_seconds, isolation_level=None)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")  # durable also after a power failure
        # Two cheap reads on every connection; the lock and the migration only when needed.
        if schema_version(connection) != len(MIGRATIONS) or not is_progress_store(connection):
            _prepare_schema(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables, or migrate them."""
    if not is_progress_store(connection):
        raise _move_aside(path, "it is the database of another program")
    version = schema_version(connection)
    if version > len(MIGRATIONS):
        raise StoreNewerVersion(
            f"The progress store has schema version {version}; this shardlab supports up to "
            f"{len(MIGRATIONS)}.",
            where=str(path),
            fix=f"upgrade shardlab, or set {DATA_VARIABLE} to another folder.",
        )
    # The switch to WAL fails at once with SQLITE_BUSY and ignores the timeout, so two processes
    # that start for the first time at the same moment need a lock of our own.
    with _file_lock(path):
        connection.execute("PRAGMA journal_mode = WAL")
        migrate_database(connection)


@contextlib.contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    """Exclude other processes while the file is created, migrated or moved aside."""
    try:
        import fcntl
    except ImportError:  # Windows: the worst case is a StoreBusy error
        yield
        return
    with (path.parent / f"{path.name}.lock").open("a") as lock:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise _busy_error(path) from None
                time.sleep(0.01)
        yield


# -------------------------------------------------------------------------------------- errors


def _store_error(error: sqlite3.Error, path: Path) -> StoreError:
    """Return the `StoreError` of an SQLite error."""
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte; the rest refines it
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return _busy_error(path)
    # The index of the write-ahead log is mapped memory: there a full disk is an I/O error.
    is_full = primary == sqlite3.SQLITE_IOERR and _free_bytes(path.parent) < _LOG_INDEX_BYTES
    if primary == sqlite3.SQLITE_FULL or is_full:
        return _full_error(path)
    if primary == sqlite3.SQLITE_ERROR and _MISSING_SCHEMA.search(str(error)):
        # SQLite's own check finds nothing: the file is intact, and not what we have written.
        return _handle_corruption(path, str(error), is_certain=True)
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _handle_corruption(path, str(error))
    return _unwritable_error(path, str(error))


_LOG_INDEX_BYTES = 32 * 1024  # the size of a new index of SQLite's write-ahead log


def _free_bytes(folder: Path) -> float:
    """Return the free space of a folder's disk; infinity if that is not known."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return math.inf


_MISSING_SCHEMA = re.compile("no such (table|column)|has no column")


def _full_error(path: Path) -> StoreFull:
    return StoreFull(
        "The disk is full; the progress store is unchanged.",
        where=str(path),
        fix=f"free some space, or set {DATA_VARIABLE} to a folder on another disk.",
    )


def _busy_error(path: Path) -> StoreBusy:
    return StoreBusy(
        f"Another process has locked the progress store for {LOCK_SECONDS:.0f} seconds.",
        where=str(path),
        fix="end the other shardlab, or the program that has the file open, and try again.",
    )


def _unwritable_error(path: Path, reason: str) -> StoreUnwritable:
    return StoreUnwritable(
        f"The progress store cannot be written: {reason}.",
        where=str(path),
        fix=f"make the folder writable, or set {DATA_VARIABLE} to one that is.",
    )


def _handle_corruption(path: Path, reason: str, *, is_certain: bool = False) -> StoreError:
    """Move a corrupt file aside, unless another process has done so already."""
    with _file_lock(path):
        current_reason = reason if is_certain and path.exists() else _check_integrity(path)
        if current_reason:
            return _move_aside(path, current_reason)
    return StoreCorrupt(
        f"The progress store was corrupt ({reason}), and another process has moved it aside.",
        where=str(path),
        fix="run the command again.",
    )


def _check_integrity(path: Path) -> str:
    """Return SQLite's message about the file as it is now; empty if it is intact."""
    if not path.exists():
        return ""
    with contextlib.closing(sqlite3.connect(path, timeout=LOCK_SECONDS)) as connection:
        try:
            (message,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            return str(error)
        return "" if message == "ok" else str(message).splitlines()[-1]


def _move_aside(path: Path, reason: str) -> StoreCorrupt:
    backup = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
    try:
        path.rename(backup)
    except OSError as error:
        return StoreCorrupt(
            f"The progress store is corrupt: {reason}.",
            where=f"{path}, which cannot be moved aside: {error.strerror}",
            fix=f"move the file away, or set {DATA_VARIABLE} to another folder.",
        )
    for suffix in ("-wal", "-shm"):  # the log has changes that are not in the file yet
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(backup.with_name(backup.name + suffix))
    return StoreCorrupt(
        f"The progress store is corrupt: {reason}.",
        where=f"{path}, moved to {backup.name}",
        fix="run the command again: it creates a new store. "
        f"`sqlite3 {backup} .recover` shows what the old file still contains.",
    )
