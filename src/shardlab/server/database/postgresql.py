"""PostgreSQL as the server's database: connections, locks and time limits.

psycopg is imported by SQLAlchemy when the first engine is made, so SQLite needs none of it.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import Session

from shardlab.errors import DatabaseUnusable

# Keys of advisory locks: any numbers, but the same in every release.
_MIGRATION_LOCK = 0x5348_0001
_WRITER_LOCK = 0x5348_0002
_POOL_SIZE = 10  # of a process; as many again when it is busy
_CONNECT_SECONDS = 10
# Sent with the connection. A process that is stopped, or whose network is cut, must not hold the
# writers' lock: the database ends its session and rolls its transaction back. And what a person was
# told is stored is on disk, whatever the database is set to.
_SESSION_OPTIONS = (
    "-c lock_timeout=30s -c statement_timeout=60s -c idle_in_transaction_session_timeout=5s"
    " -c client_connection_check_interval=5s -c synchronous_commit=on"
    " -c tcp_user_timeout=15s -c tcp_keepalives_idle=5 -c tcp_keepalives_interval=3"
    " -c tcp_keepalives_count=3"
)
_CONNECT_ARGUMENTS = {
    "connect_timeout": _CONNECT_SECONDS,
    "application_name": "shardlab",
    "options": _SESSION_OPTIONS,
    # The same for this end: a connection to a machine that is gone fails in seconds.
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15000,
}
_SCHEMES = frozenset({"postgresql", "postgres", "postgresql+psycopg"})


def parse_database_url(url: str) -> URL:
    """Return the address of a PostgreSQL database. Raises `DatabaseUnusable`.

    >>> parse_database_url("postgresql://lab:hunter2@db.example.org/shardlab")
    postgresql+psycopg://lab:***@db.example.org/shardlab
    """
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):  # the text is not repeated: it may hold a password
        address = None
    if address is None or address.drivername not in _SCHEMES or not address.database:
        raise DatabaseUnusable(
            "The address of the database is not that of a PostgreSQL database.",
            where="--database" if address is None else f"--database {describe_url(address)}",
            fix="write --database postgresql://USER@HOST:5432/NAME, or leave it out for SQLite.",
        )
    if importlib.util.find_spec("psycopg") is None or importlib.util.find_spec("pgqueuer") is None:
        raise DatabaseUnusable(
            "PostgreSQL needs two packages that are not installed: psycopg and pgqueuer.",
            where=f"--database {describe_url(address)}",
            fix='pip install "shardlab[postgresql]"',
        )
    return address.set(drivername="postgresql+psycopg")


def describe_url(address: URL) -> str:
    """Return an address for people, without its password."""
    return address.set(query={}).render_as_string(hide_password=True)


def open_postgresql(address: URL) -> Engine:
    """Return an engine whose transactions see one state of the database, as SQLite's do."""
    engine = create_engine(
        address,
        connect_args=_CONNECT_ARGUMENTS,
        pool_size=_POOL_SIZE,
        # After a restart of the database the first use of each connection would fail.
        pool_pre_ping=True,
        isolation_level="REPEATABLE READ",
        hide_parameters=True,  # the values of a statement are in no message and no log
    )
    _replace_null_characters(engine)
    return engine


def _replace_null_characters(engine: Engine) -> None:
    """Store U+0000 as U+FFFD: a text of PostgreSQL cannot hold it, and people can send it."""
    from psycopg.types.string import StrDumperUnknown

    class TextDumper(StrDumperUnknown):
        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", "\ufffd") if "\0" in obj else obj)

    @event.listens_for(engine, "connect")
    def configure_connection(connection: Any, _: object) -> None:
        connection.adapters.register_dumper(str, TextDumper)


def lock_migrations(connection: Connection) -> None:
    """Exclude other processes that migrate, until the end of the transaction."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})


def lock_writers(session: Session) -> None:
    """Exclude other exclusive writers, of all processes, until the end of the transaction."""
    session.execute(_LOCK_WRITERS, {"key": _WRITER_LOCK})


_LOCK_WRITERS = text("SELECT pg_advisory_xact_lock(:key)")
