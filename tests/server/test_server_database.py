"""The server's database: migrations build exactly the tables, and SQLite is set up safely."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from shardlab.errors import DatabaseUnusable
from shardlab.server.database import engine as engine_module
from shardlab.server.database import people_tables  # noqa: F401  its tables belong to the metadata
from shardlab.server.database.engine import (
    DATABASE_FILE,
    HEAD_REVISION,
    database_revision,
    open_database,
)
from shardlab.server.database.tables import Base, QueueTurnRow


@pytest.fixture
def database(tmp_path, database_url):
    database = open_database(tmp_path, database_url)
    yield database
    database.close()


def _is_ours(name, kind):
    return not (kind == "table" and name.startswith("pgqueuer"))


def test_the_migrations_build_exactly_the_declared_tables(database):
    with database.engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "compare_type": True,
                "include_object": lambda _, name, kind, *rest: _is_ours(name, kind),
            },
        )
        assert compare_metadata(context, Base.metadata) == []


def test_the_head_revision_is_the_newest_migration_file():
    config = Config()
    folder = Path(engine_module.__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder))
    config.set_main_option("path_separator", "os")
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD_REVISION]


def test_sqlite_uses_wal_foreign_keys_and_full_durability(tmp_path):
    database = open_database(tmp_path)
    with database.read() as session:
        assert session.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert session.execute(text("PRAGMA foreign_keys")).scalar() == 1
        assert session.execute(text("PRAGMA synchronous")).scalar() == 2
    database.close()


def test_an_error_rolls_the_transaction_back(database):
    def add_row_and_fail():
        with database.write() as session:
            session.add(QueueTurnRow(person=1, turn=1))
            session.flush()
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        add_row_and_fail()
    with database.read() as session:
        assert session.get(QueueTurnRow, 1) is None


def test_concurrent_read_modify_write_transactions_lose_no_update(database):
    with database.write() as session:
        session.add(QueueTurnRow(person=1, turn=0))

    def add_turns():
        for _ in range(20):
            with database.write() as session:
                row = session.get(QueueTurnRow, 1)
                row.turn += 1

    threads = [threading.Thread(target=add_turns) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.read() as session:
        assert session.get(QueueTurnRow, 1).turn == 80


def test_servers_that_open_a_new_database_at_the_same_time_both_succeed(tmp_path, new_database_url):
    errors = []

    def open_and_close():
        try:
            database = open_database(tmp_path, new_database_url)
            assert database_revision(database.engine) == HEAD_REVISION
            database.close()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=open_and_close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_database_of_a_newer_shardlab_is_refused_with_a_fix(tmp_path, database_url):
    database = open_database(tmp_path, database_url)
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    database.close()
    with pytest.raises(DatabaseUnusable, match="9999") as caught:
        open_database(tmp_path, database_url)
    assert "upgrade shardlab" in caught.value.fix


def test_a_file_that_is_no_database_is_refused_with_a_fix(tmp_path):
    (tmp_path / "server.db").write_bytes(b"no database" * 200)
    with pytest.raises(DatabaseUnusable, match="not a database"):
        open_database(tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="modes of files are those of Unix")
def test_a_new_database_is_readable_by_its_user_only(tmp_path):
    tmp_path.chmod(0o755)  # an admin made the folder
    database = open_database(tmp_path)
    with database.write() as session:
        session.execute(text("CREATE TABLE more (number INTEGER)"))
    names = (DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm")
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in names} == {0o600}
    database.close()


def test_one_transaction_holds_all_writes_of_its_thread_or_none(database):
    def write_and_fail():
        with database.transaction():
            with database.write() as session:
                session.add(QueueTurnRow(person=1, turn=1))
            with database.read() as session:
                assert session.get(QueueTurnRow, 1).turn == 1
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_and_fail()
    with database.read() as session:
        assert session.get(QueueTurnRow, 1) is None
    with database.transaction(), database.write() as session:
        session.add(QueueTurnRow(person=2, turn=2))
    with database.read() as session:
        assert session.get(QueueTurnRow, 2).turn == 2


def test_a_reader_sees_one_state_while_others_write(database):
    with database.read() as session:
        assert session.scalars(text("SELECT count(*) FROM queue_turn")).one() == 0
        with database.write() as other:
            other.add(QueueTurnRow(person=1, turn=1))
        assert session.scalars(text("SELECT count(*) FROM queue_turn")).one() == 0


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://ada@localhost/lab", "not that of a PostgreSQL database"),
        ("postgresql://ada:hunter2@localhost", "not that of a PostgreSQL database"),
        ("lab.db", "not that of a PostgreSQL database"),
        ("postgresql://ada:hunter2@127.0.0.1:1/lab", "cannot be used"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_its_password(tmp_path, url, message):
    pytest.importorskip("psycopg")
    with pytest.raises(DatabaseUnusable, match=message) as caught:
        open_database(tmp_path, url)
    assert "hunter2" not in str(caught.value)
    assert caught.value.fix


def test_commits_are_durable_whatever_postgresql_is_set_to(tmp_path, postgresql_url):
    database = open_database(tmp_path, postgresql_url)  # of a server with synchronous_commit=off
    for begin in (database.read, database.write):
        with begin() as session:
            assert session.execute(text("SHOW synchronous_commit")).scalar() == "on"
    database.close()


def test_a_transaction_that_stands_still_is_ended_and_lets_others_write(tmp_path, postgresql_url):
    stopped, other = (open_database(tmp_path, postgresql_url) for _ in range(2))

    def write_and_stand_still():
        with stopped.write() as session:
            session.execute(text("SET LOCAL idle_in_transaction_session_timeout = '200ms'"))
            session.add(QueueTurnRow(person=1, turn=1))
            session.flush()
            with other.write() as others_session:  # waits for the lock until the session is ended
                others_session.add(QueueTurnRow(person=2, turn=2))

    with pytest.raises(DBAPIError):
        write_and_stand_still()
    with other.read() as session:
        assert [row.person for row in session.scalars(select(QueueTurnRow))] == [2]
    stopped.close()
    other.close()
