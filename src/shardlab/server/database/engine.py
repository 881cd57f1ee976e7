"""Opens the database, brings it to the newest schema, and begins transactions."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from shardlab.errors import DatabaseUnusable

# The newest migration; a test compares it with the files. Alembic itself is imported only when
# the database has another version: that costs a fifth of a second of every start.
HEAD_REVISION = "0004"
DATABASE_FILE = "server.db"
_BUSY_SECONDS = 30.0  # for the lock of another process; a write takes milliseconds
_BEGIN_OPTION = "shardlab_begin"


class Database:
    """The database of one server. Threads share it; each transaction has its own connection."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        # SQLite lets one transaction write at a time. A transaction that reads first and writes
        # later fails at once if another has written in between, so a writer says so at its start.
        self._writer = engine.execution_options(**{_BEGIN_OPTION: "IMMEDIATE"})

    @contextlib.contextmanager
    def read(self) -> Iterator[Session]:
        """Yield a session that sees one state of the database and changes nothing."""
        with Session(self.engine) as session:
            yield session

    @contextlib.contextmanager
    def write(self) -> Iterator[Session]:
        """Yield a session in one transaction: committed at the end, or rolled back on an error."""
        # Rows stay readable after the commit.
        with Session(self._writer, expire_on_commit=False) as session, session.begin():
            yield session

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def open_database(folder: Path) -> Database:
    """Return the database in a data folder, created or migrated. Raises `DatabaseUnusable`."""
    path = folder / DATABASE_FILE
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)  # readable by the user only
        # The folder may have been there, open to all. SQLite gives its other files the same mode.
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT, 0o600))
        engine = create_engine(
            f"sqlite:///{path}",
            connect_args={"timeout": _BUSY_SECONDS},
            pool_size=10,
            hide_parameters=True,  # an error in the log has no password hash and no submission
        )
        _configure_sqlite(engine)
        migrate_database(engine, lock_file=folder / f"{DATABASE_FILE}.lock")
    except (OSError, sqlite3.Error, DBAPIError) as error:
        reason = (
            error.strerror if isinstance(error, OSError) else str(getattr(error, "orig", error))
        )
        raise DatabaseUnusable(
            f"The database of the server cannot be used: {reason}.",
            where=str(path),
            fix="make the folder writable, or set SHARDLAB_DATA to another folder.",
        ) from error
    return Database(engine)


def _configure_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def configure_connection(connection: Any, _: object) -> None:
        # Python's sqlite3 module begins transactions by itself, and not before every statement.
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")  # durable also after a power failure
        connection.execute("PRAGMA secure_delete = ON")  # a deleted account leaves no bytes

    @event.listens_for(engine, "begin")
    def begin_transaction(connection: Connection) -> None:
        mode = connection.get_execution_options().get(_BEGIN_OPTION, "DEFERRED")
        connection.exec_driver_sql(f"BEGIN {mode}")


def database_revision(engine: Engine) -> str:
    """Return the version of the schema; empty for a new database."""
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return ""
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar() or ""


def migrate_database(engine: Engine, *, lock_file: Path) -> None:
    """Bring the schema to `HEAD_REVISION`, in one transaction."""
    if database_revision(engine) == HEAD_REVISION:
        return
    with _file_lock(lock_file):
        # The switch to WAL cannot happen in a transaction, and does not wait for a lock, so two
        # processes that start for the first time at the same moment need a lock of our own.
        with contextlib.closing(engine.raw_connection()) as connection:
            connection.cursor().execute("PRAGMA journal_mode = WAL")
        revision = database_revision(engine)
        if revision > HEAD_REVISION:
            raise DatabaseUnusable(
                f"The database of the server has schema version {revision}; this shardlab supports "
                f"up to {HEAD_REVISION}.",
                where=str(lock_file.with_suffix("")),
                fix="upgrade shardlab, or set SHARDLAB_DATA to another folder.",
            )
        if revision != HEAD_REVISION:
            _run_migrations(engine)


def _run_migrations(engine: Engine) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    with engine.execution_options(**{_BEGIN_OPTION: "IMMEDIATE"}).begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


@contextlib.contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    """Exclude other processes while the schema changes."""
    try:
        import fcntl
    except ImportError:  # Windows: the worst case is an error at the first start of two servers
        yield
        return
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
