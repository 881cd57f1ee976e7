"""A connection to the record: ready to use, or an error that says what to do.

The tables of the record, and the steps from each older form to the next.

Where a person's data lies, by the custom of each system.
"""

from __future__ import annotations

import contextlib
import os
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

APPLICATION_ID = 0x5348_4C42  # "SHLB": tells our record from another program's database

# Step n leads from version n to n + 1. A step that has been released is never changed: append.
STEPS: tuple[tuple[str, ...], ...] = (
    (
        # Answers are kept once each: `learn` judges on every save, and many saves are alike.
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
)


def version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def is_ours(connection: sqlite3.Connection) -> bool:
    """Say whether a database is our record, or is still empty."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (n_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return bool(application == APPLICATION_ID or n_tables == 0)


def migrate(
    connection: sqlite3.Connection, steps: Sequence[Sequence[str]] = STEPS, to: int | None = None
) -> None:
    """Lead a database to the newest form: all of it in one transaction, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Read again inside: another process may have been quicker.
        for step in steps[version(connection) : to]:
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(steps) if to is None else to}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


VARIABLE = "SHARDLAB_DATA"


def data_folder(environ: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path:
    """Return the folder for the record of practice; `SHARDLAB_DATA` names another.

    >>> data_folder({"SHARDLAB_DATA": "/tmp/mine"}).as_posix()
    '/tmp/mine'
    >>> data_folder({"XDG_DATA_HOME": "/home/ada/data"}, "linux").as_posix()
    '/home/ada/data/shardlab'

    A relative `XDG_DATA_HOME` is ignored, as the XDG specification asks.
    """
    given = os.environ if environ is None else environ
    if given.get(VARIABLE):
        return Path(given[VARIABLE]).expanduser().absolute()
    if platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "shardlab"
    if platform == "win32" and given.get("LOCALAPPDATA"):
        return Path(given["LOCALAPPDATA"]) / "shardlab"
    data = given.get("XDG_DATA_HOME", "")
    return (Path(data) if Path(data).is_absolute() else Path.home() / ".local/share") / "shardlab"


PATIENCE = 10.0  # seconds to wait for another process; a write takes milliseconds


@contextlib.contextmanager
def connected(path: Path, patience: float = PATIENCE) -> Iterator[sqlite3.Connection]:
    """Yield a connection inside one transaction, which ends well or leaves nothing.

    One connection for each piece of work: nothing is held while a person thinks, threads share
    none, and a kill at any moment leaves what SQLite's own log can take back.
    """
    try:
        connection = _opened(path, patience)
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        finally:
            connection.close()  # takes back what was not committed
    except sqlite3.Error as error:
        raise _told(error, path) from error
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from error


def _opened(path: Path, patience: float) -> sqlite3.Connection:
    path.parent.mkdir(0o700, parents=True, exist_ok=True)  # a person's own, as XDG asks
    connection = sqlite3.connect(path, timeout=patience, isolation_level=None)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")  # also against a loss of power
        if version(connection) != len(STEPS) or not is_ours(connection):
            _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables, or lead them to the newest form."""
    if not is_ours(connection):
        raise _set_aside(path, "it is the database of another program")
    found = version(connection)
    if found > len(STEPS):
        raise StoreNewerVersion(
            f"The record of practice has form {found}; this shardlab knows forms up to "
            f"{len(STEPS)}.",
            where=str(path),
            fix=f"update shardlab, or set {VARIABLE} to another folder.",
        )
    # SQLite does not wait while it changes to WAL, so that two first starts are kept apart here.
    with _alone(path):
        connection.execute("PRAGMA journal_mode = WAL")
        migrate(connection)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes out of the same rare work: making the record, setting it aside."""
    try:
        import fcntl
    except ImportError:  # not on Windows, where the worst is an error that asks to try again
        yield
        return
    with (path.parent / f"{path.name}.lock").open("a") as lock:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise _busy(path) from None
                time.sleep(0.01)
        yield


# ------------------------------------------------------------------------------ what goes wrong


def _told(error: sqlite3.Error, path: Path) -> StoreError:
    """Return SQLite's error in our words."""
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return _busy(path)
    if primary == sqlite3.SQLITE_FULL:
        return StoreFull(
            "The disk is full: the record of practice is as it was before.",
            where=str(path),
            fix=f"make room, or set {VARIABLE} to a folder on another disk.",
        )
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _damaged(path, str(error))
    return _unwritable(path, str(error))


def _busy(path: Path) -> StoreBusy:
    return StoreBusy(
        f"Another process has held the record of practice for {PATIENCE:.0f} seconds.",
        where=str(path),
        fix="end the other shardlab, or whatever else has the file open, and try again.",
    )


def _unwritable(path: Path, words: str) -> StoreUnwritable:
    return StoreUnwritable(
        f"The record of practice cannot be written: {words}.",
        where=str(path),
        fix=f"make the folder writable, or set {VARIABLE} to one that is.",
    )


def _damaged(path: Path, words: str) -> StoreError:
    """Set the file aside, unless another process already has."""
    with _alone(path):
        now = _complaint(path)
        return _set_aside(path, now) if now else _moved_meanwhile(path, words)


def _complaint(path: Path) -> str:
    """Return what SQLite says of the file as it lies there now; empty where it is sound."""
    if not path.exists():
        return ""
    with contextlib.closing(sqlite3.connect(path, timeout=PATIENCE)) as connection:
        try:
            (told,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            return str(error)
        return "" if told == "ok" else str(told).splitlines()[-1]


def _set_aside(path: Path, words: str) -> StoreCorrupt:
    kept = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
    path.rename(kept)
    for suffix in ("-wal", "-shm"):  # the log holds what the file does not have yet
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(kept.with_name(kept.name + suffix))
    return StoreCorrupt(
        f"The record of practice is damaged: {words}.",
        where=f"{path}, kept as {kept.name}",
        fix="run the command again: it begins a new record. "
        f"`sqlite3 {kept} .recover` shows what the old one still holds.",
    )


def _moved_meanwhile(path: Path, words: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"The record of practice was damaged ({words}), and another process has set it aside.",
        where=str(path),
        fix="run the command again.",
    )
