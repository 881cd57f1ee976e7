"""The record of practice: every submission, and how far a person is with each problem."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shardlab.course.database import connected, data_folder
from shardlab.course.submission import Progress, Submission
from shardlab.errors import UnknownSubmission
from shardlab.judge.judgement import Judgement

FILE = "practice.db"


@dataclass(frozen=True)
class Record:
    """What is kept about one catalogue, in one file.

    `catalogue` is empty for shardlab's own, and the folder of another: slugs may be the same.
    """

    path: Path
    catalogue: str = ""

    # ----------------------------------------------------------------------------- submissions

    def hand_in(
        self, problem: str, content_version: int, source: bytes, *, kind: str, seed: int
    ) -> int:
        """Keep an answer and return its number: before it is judged, so that no kill loses it."""
        digest = hashlib.sha256(source).hexdigest()
        with connected(self.path) as connection:
            connection.execute(
                "INSERT INTO source VALUES (?, ?) ON CONFLICT DO NOTHING",
                (digest, zlib.compress(source)),
            )
            cursor = connection.execute(
                "INSERT INTO submission"
                " (catalogue, problem, content_version, kind, seed, source, handed_in)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (self.catalogue, problem, content_version, kind, seed, digest, _now()),
            )
            return int(cursor.lastrowid or 0)

    def judged(self, number: int, judgement: Judgement) -> None:
        """Keep what came of a submission; a judgement that counts is never replaced."""
        body = zlib.compress(json.dumps(judgement.to_json()).encode())
        with connected(self.path) as connection:
            connection.execute(
                "INSERT INTO judgement (submission, code, passed, counts, judged, body)"
                " VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (submission) DO UPDATE SET code = excluded.code,"
                " passed = excluded.passed, counts = excluded.counts,"
                " judged = excluded.judged, body = excluded.body WHERE NOT counts",
                (
                    number,
                    judgement.verdict.code,
                    judgement.passed,
                    judgement.counts,
                    _now(),
                    body,
                ),
            )

    def submissions(self, problem: str | None = None) -> tuple[Submission, ...]:
        """Return the submissions, or those of one problem, the oldest first."""
        with connected(self.path) as connection:
            rows = connection.execute(
                f"{_SUBMISSIONS} WHERE catalogue = ? AND coalesce(?, problem) = problem"
                " ORDER BY number",
                (self.catalogue, problem),
            )
            return tuple(_submission(row) for row in rows)

    def submission(self, number: int) -> Submission:
        """Return one submission. Raises `UnknownSubmission`."""
        with connected(self.path) as connection:
            return _submission(self._row(connection, _SUBMISSIONS, number))

    def source(self, number: int) -> bytes:
        """Return the answer of a submission, byte for byte."""
        with connected(self.path) as connection:
            asked = "SELECT body FROM submission JOIN source ON source = digest"
            return zlib.decompress(self._row(connection, asked, number)[0])

    def judgement(self, number: int) -> Judgement | None:
        """Return what came of a submission; None where its judging has not ended."""
        with connected(self.path) as connection:
            row = self._row(connection, _BODY, number)
        return _judgement(row[0])

    def _row(self, connection: sqlite3.Connection, select: str, number: int) -> tuple[Any, ...]:
        where = " WHERE catalogue = ? AND number = ?"
        row = connection.execute(select + where, (self.catalogue, number)).fetchone()
        if row is None:
            raise UnknownSubmission(
                f"There is no submission {number}.",
                where=str(self.path),
                fix="`shardlab practice history` shows their numbers.",
            )
        return tuple(row)

    # -------------------------------------------------------------------------------- progress

    def progress(self) -> Mapping[str, Progress]:
        """Return what was done about each problem that anything was done about, by slug."""
        with connected(self.path) as connection:
            rows = connection.execute(_PROGRESS, {"catalogue": self.catalogue})
            return {row[0]: Progress(*row) for row in rows}

    def of(self, problem: str) -> Progress:
        """Return what was done about one problem."""
        return self.progress().get(problem, Progress(problem))

    def latest(self) -> str | None:
        """Return the problem that was started last; None before the first."""
        with connected(self.path) as connection:
            row = connection.execute(
                "SELECT problem FROM progress WHERE catalogue = ? AND started != ''"
                " ORDER BY started DESC, rowid DESC LIMIT 1",
                (self.catalogue,),
            ).fetchone()
            return None if row is None else str(row[0])

    def started(self, problem: str, path: Path) -> None:
        """Keep where a person's answer lies."""
        self._note(problem, "path = ?, started = ?", (str(path), _now()))

    def hint_taken(self, problem: str, number: int) -> None:
        """Keep that the first `number` hints were shown."""
        self._note(problem, "hints = max(hints, ?)", (number,))

    def solution_asked(self, problem: str) -> int:
        """Keep that the solution was asked for, and return how often by now."""
        self._note(problem, "solution_asked = solution_asked + 1", ())
        return self.of(problem).solution_asked

    def _note(self, problem: str, change: str, values: tuple[object, ...]) -> None:
        key = (self.catalogue, problem)
        with connected(self.path) as connection:
            connection.execute(
                "INSERT INTO progress (catalogue, problem) VALUES (?, ?) ON CONFLICT DO NOTHING",
                key,
            )
            connection.execute(
                f"UPDATE progress SET {change} WHERE catalogue = ? AND problem = ?",
                (*values, *key),
            )


def open_record(folder: Path | None = None, catalogue: str = "") -> Record:
    """Return the person's record; its file is made with the first thing that is kept or asked."""
    return Record((folder or data_folder()) / FILE, catalogue)


_SUBMISSIONS = (
    "SELECT number, problem, content_version, kind, seed, handed_in,"
    " coalesce(code, ''), coalesce(passed, 0), coalesce(counts, 1)"
    " FROM submission LEFT JOIN judgement ON submission = number"
)
_BODY = "SELECT body FROM submission LEFT JOIN judgement ON submission = number"
_PROGRESS = """
    WITH tried AS (
        SELECT problem,
            sum(kind = 'run') AS n_runs,
            sum(kind = 'submit') AS n_submits,
            min(CASE WHEN kind = 'submit' AND passed THEN judged END) AS solved_when,
            max(CASE WHEN kind = 'submit' AND passed THEN content_version END) AS solved_version
        FROM submission JOIN judgement ON submission = number
        WHERE catalogue = :catalogue AND counts
        GROUP BY problem
    ), noted AS (SELECT * FROM progress WHERE catalogue = :catalogue)
    SELECT slug, coalesce(path, ''), coalesce(started, ''), coalesce(hints, 0),
        coalesce(solution_asked, 0), coalesce(n_runs, 0), coalesce(n_submits, 0),
        coalesce(solved_when, ''), coalesce(solved_version, 0)
    FROM (SELECT problem AS slug FROM tried UNION SELECT problem FROM noted)
    LEFT JOIN tried ON tried.problem = slug LEFT JOIN noted ON noted.problem = slug
"""


def _submission(row: tuple[Any, ...]) -> Submission:
    made = Submission(*row)
    return replace(made, passed=bool(made.passed), counts=bool(made.counts))


def _judgement(body: bytes | None) -> Judgement | None:
    """Return a judgement; one that cannot be read is as good as none, and can be made again."""
    if body is None:
        return None
    try:
        return Judgement.from_json(json.loads(zlib.decompress(body)))
    except (zlib.error, ValueError, KeyError, TypeError):
        return None


def _now() -> str:
    # Milliseconds: of two problems started in a second, the later one is the latest.
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
