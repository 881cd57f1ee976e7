"""Opens the database, brings it to the newest schema, and begins transactions."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from shardlab.errors import DatabaseUnusable
from shardlab.server.database.database_errors import first_line
from shardlab.server.database.database_file import (
    DATABASE_FILE,
    create_database_file,
    unusable_database,
)
from shardlab.server.database.postgresql import (
    describe_url,
    lock_migrations,
    lock_writers,
    open_postgresql,
    parse_database_url,
)
from shardlab.server.database.tables import Base

# The newest migration; a test compares it with the files. Alembic itself is imported only when
# the database has another version: that costs a fifth of a second of every start.
HEAD_REVISION = "0006"
_BUSY_SECONDS = 30.0  # for the lock of another process; a write takes milliseconds
_BEGIN_OPTION = "shardlab_begin"


class Database:
    """The database of one server. Threads share it; each transaction has its own connection."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.is_postgresql = engine.dialect.name == "postgresql"
        if self.is_postgresql:
            # A row is read again after its lock was waited for; a snapshot would be refused.
            self._writer = engine.execution_options(isolation_level="READ COMMITTED")
        else:
            # SQLite lets one transaction write at a time. A transaction that reads first and
            # writes later fails at once if another has written in between, so a writer says so
            # at its start.
            self._writer = engine.execution_options(**{_BEGIN_OPTION: "IMMEDIATE"})
        self._exclusive = threading.Lock()
        self._current = threading.local()  # the session of `transaction`, if there is one

    @contextlib.contextmanager
    def read(self) -> Iterator[Session]:
        """Yield a session that sees one state of the database and changes nothing."""
        current = self._current_session()
        if current is not None:
            yield current
            return
        with Session(self.engine) as session:
            yield session

    @contextlib.contextmanager
    def write(self, *, is_exclusive: bool = True) -> Iterator[Session]:
        """Yield a session in one transaction: committed at the end, or rolled back on an error.

        No other exclusive transaction writes at the same time, in any process: what it has read
        still holds when it writes. On PostgreSQL one that is not exclusive does not wait for
        others; it must lock the rows that it reads first, or write in one statement.
        """
        current = self._current_session()
        if current is not None:
            yield current
            current.flush()
            return
        is_locked = is_exclusive and self.is_postgresql
        # One thread of a process at a time waits for the lock of all processes: if this one is
        # stopped or cut off, it can hold the lock for one time limit, and not once for each thread.
        first = self._first_in_process() if is_locked else contextlib.nullcontext()
        # Rows stay readable after the commit.
        with first, Session(self._writer, expire_on_commit=False) as session, session.begin():
            if is_locked:
                lock_writers(session)
            yield session

    @contextlib.contextmanager
    def _first_in_process(self) -> Iterator[None]:
        if not self._exclusive.acquire(timeout=_BUSY_SECONDS):
            reason = TimeoutError("other transactions of this process took too long")
            raise OperationalError(None, None, reason)
        try:
            yield
        finally:
            self._exclusive.release()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Make every `read` and `write` of this thread a part of one exclusive transaction."""
        with self.write() as session:
            is_outer = self._current_session() is None
            if is_outer:
                self._current.session = session
            try:
                yield
            finally:
                if is_outer:
                    self._current.session = None

    def _current_session(self) -> Session | None:
        session: Session | None = getattr(self._current, "session", None)
        return session

    def insert(self, table: type[Base]) -> sqlite.Insert:
        """Return an INSERT that can say ON CONFLICT; both databases have the same form of it."""
        if self.is_postgresql:
            return cast("sqlite.Insert", postgresql.insert(table))
        return sqlite.insert(table)

    def now(self) -> float:
        """Return the time: that of the database where machines with clocks of their own share it.

        SQLite has none; there all processes are on one machine.
        """
        if not self.is_postgresql:
            return time.time()
        with self.read() as session:
            query = text("SELECT extract(epoch FROM clock_timestamp())::float8")
            return float(session.execute(query).scalar_one())

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def open_database(folder: Path, url: str = "") -> Database:
    """Return the database in a data folder, or the one of a URL; created or migrated.

    Raises `DatabaseUnusable`.
    """
    if url:
        return _open_postgresql(url)
    path = create_database_file(folder)
    try:
        engine = create_engine(
            f"sqlite:///{path}",
            connect_args={"timeout": _BUSY_SECONDS},
            pool_size=10,
            hide_parameters=True,  # an error in the log has no password hash and no submission
        )
        _configure_sqlite(engine)
        migrate_database(engine, lock_file=folder / f"{DATABASE_FILE}.lock")
    except OSError as error:
        raise unusable_database(path, error.strerror) from error
    except (sqlite3.Error, DBAPIError) as error:
        raise unusable_database(path, str(getattr(error, "orig", error))) from error
    return Database(engine)


def _open_postgresql(url: str) -> Database:
    address = parse_database_url(url)
    engine = open_postgresql(address)
    try:
        migrate_database(engine)
    except DatabaseUnusable:
        engine.dispose()
        raise
    except DBAPIError as error:
        engine.dispose()
        raise DatabaseUnusable(
            f"The database of the server cannot be used: {first_line(error).rstrip('.')}.",
            where=describe_url(address),
            fix="start PostgreSQL, create the role and its database (createuser, createdb), and "
            "check the address.",
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
        return _revision_of(connection)


def _revision_of(connection: Connection) -> str:
    if not inspect(connection).has_table("alembic_version"):
        return ""
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar() or ""


def migrate_database(engine: Engine, *, lock_file: Path | None = None) -> None:
    """Bring the schema to `HEAD_REVISION`, in one transaction.

    Processes that start at the same moment exclude each other: on SQLite with `lock_file`, on
    PostgreSQL with an advisory lock.
    """
    if database_revision(engine) == HEAD_REVISION:
        return
    if lock_file is None:
        with engine.execution_options(isolation_level="READ COMMITTED").begin() as connection:
            lock_migrations(connection)
            _migrate_locked(connection, describe_url(engine.url))
        return
    with _file_lock(lock_file):
        # The switch to WAL cannot happen in a transaction, and does not wait for a lock, so two
        # processes that start for the first time at the same moment need a lock of our own.
        with contextlib.closing(engine.raw_connection()) as raw:
            raw.cursor().execute("PRAGMA journal_mode = WAL")
        with engine.execution_options(**{_BEGIN_OPTION: "IMMEDIATE"}).begin() as connection:
            _migrate_locked(connection, str(lock_file.with_suffix("")))


def _migrate_locked(connection: Connection, where: str) -> None:
    revision = _revision_of(connection)
    if revision > HEAD_REVISION:
        raise DatabaseUnusable(
            f"The database of the server has schema version {revision}; this shardlab supports "
            f"up to {HEAD_REVISION}.",
            where=where,
            fix="upgrade shardlab, or set SHARDLAB_DATA to another folder.",
        )
    if revision != HEAD_REVISION:
        _run_migrations(connection)


def _run_migrations(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
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
