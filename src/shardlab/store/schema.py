"""The tables of the record, and the steps from each older form to the next."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

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
