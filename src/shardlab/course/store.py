"""The progress store: every submission, its judgement, and the progress with each problem.

`database` opens the SQLite file; this module reads and writes its rows. `PracticeStore` is what the
course needs of a store: `ProgressStore` for one user on their own machine, or one person's part of
a server's database.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Protocol

from shardlab.course.database import connect, data_folder
from shardlab.errors import UnknownSubmission
from shardlab.judge.judgement import Judgement

FILE = "practice.db"


@dataclass(frozen=True)
class Submission:
    """One submission. Its source and its judgement are loaded by its number."""

    number: int
    problem: str  # slug
    content_version: int
    kind: str  # run (the examples) or submit (all cases)
    seed: int
    when: str  # UTC, such as 2026-11-16T02:44:07.120Z
    code: str = ""  # of the verdict; empty until it is judged
    passed: bool = False
    counts: bool = True  # a failure of the judge itself is not an attempt
    store_error: str = ""  # why it is not in the store, and has no number

    @property
    def is_finished(self) -> bool:
        return bool(self.code)

    def to_json(self) -> dict[str, Any]:
        data = {**vars(self), "is_finished": self.is_finished}
        del data["store_error"]  # what is listed is stored
        return data


@dataclass(frozen=True)
class Progress:
    """The progress with one problem."""

    problem: str  # slug
    path: str = ""  # of the solution file; empty until started
    started_when: str = ""
    hints: int = 0  # hints shown
    solution_requests: int = 0  # before the solution was unlocked
    n_runs: int = 0
    n_submits: int = 0
    solved_when: str = ""  # of the first pass
    solved_version: int = 0  # content_version of the latest pass

    @property
    def is_solved(self) -> bool:
        return bool(self.solved_when)

    @property
    def is_attempted(self) -> bool:
        return bool(self.n_runs or self.n_submits)

    def to_json(self) -> dict[str, Any]:
        data = {**vars(self), "is_solved": self.is_solved}
        data["solution_asked"] = data.pop("solution_requests")  # the key of earlier exports
        return data


@dataclass(frozen=True)
class Draft:
    """What the editor of a problem holds, not submitted yet."""

    problem: str  # slug
    source: str
    saved_when: str  # UTC


@dataclass(frozen=True, kw_only=True)
class PracticeSnapshot:
    """What a page shows of one person's work: all of one moment, read at once."""

    progress: Mapping[str, Progress]  # by slug
    latest_problem: str | None  # the one that was started last
    submissions: tuple[Submission, ...] = ()  # of one problem, oldest first
    drafts: Mapping[str, Draft] = field(default_factory=dict)  # of the names that were requested

    def progress_of(self, problem: str) -> Progress:
        """Return the progress with one problem."""
        return self.progress.get(problem, Progress(problem))


class PracticeStore(Protocol):
    """One person's submissions, progress and drafts in one catalogue."""

    @property
    def folder(self) -> Path:
        """Return the folder of the database: a submission must not be able to read it."""

    @property
    def catalogue(self) -> str:
        """Return the catalogue that the problems are of; empty for shardlab's own."""

    def add_submission(
        self, problem: str, content_version: int, source: bytes, *, kind: str, seed: int
    ) -> int:
        """Store a submission before it is judged, and return its number."""

    def save_judgement(self, number: int, judgement: Judgement) -> None:
        """Store the judgement of a submission; one that counts is never replaced."""

    def list_submissions(self, problem: str | None = None) -> tuple[Submission, ...]:
        """Return all submissions, or those of one problem, oldest first."""

    def get_submission(self, number: int) -> Submission:
        """Return one submission. Raises `UnknownSubmission`, also for another person's."""

    def load_source(self, number: int) -> bytes:
        """Return the source of a submission. Raises `UnknownSubmission`."""

    def load_judgement(self, number: int) -> Judgement | None:
        """Return the judgement; None if it is not judged. Raises `UnknownSubmission`."""

    def load_progress(self) -> Mapping[str, Progress]:
        """Return the progress of every problem that was started or attempted, by slug."""

    def progress_of(self, problem: str) -> Progress:
        """Return the progress with one problem."""

    def latest_problem(self) -> str | None:
        """Return the problem that was started last; None before the first."""

    def load_snapshot(
        self, problem: str | None = None, drafts: Sequence[str] = ()
    ) -> PracticeSnapshot:
        """Return progress, the submissions of one problem and some drafts, in one transaction."""

    def record_start(self, problem: str, path: Path | None = None) -> None:
        """Store the time, and the path of a solution file if there is one."""

    def record_hint(self, problem: str, number: int) -> None:
        """Store that the first `number` hints were shown."""

    def record_solution_request(self, problem: str) -> int:
        """Store a request for the solution, and return the number of requests so far."""

    def save_draft(self, problem: str, source: str) -> Draft:
        """Replace the draft of a problem."""

    def replace_draft(self, seen: Draft | None, problem: str, source: str) -> Draft | None:
        """Replace the draft that was seen; None if another one is there by now."""

    def load_draft(self, problem: str) -> Draft | None:
        """Return the draft of a problem; None if there is none."""

    def delete_draft(self, problem: str) -> None:
        """Remove the draft of a problem."""

    def export_data(self) -> dict[str, Any]:
        """Return progress and every submission with its source and its judgement."""

    def write_zip(self, file: Path | IO[bytes]) -> None:
        """Write `practice.json`, and each submission as a file of its own."""


@dataclass(frozen=True)
class ProgressStore:
    """The submissions and progress of one catalogue, in one file.

    `catalogue` is empty for shardlab's own, and otherwise the catalogue's folder: two catalogues
    may have problems with the same slug.
    """

    path: Path
    catalogue: str = ""

    @property
    def folder(self) -> Path:
        return self.path.parent

    # ----------------------------------------------------------------------------- submissions

    def add_submission(
        self, problem: str, content_version: int, source: bytes, *, kind: str, seed: int
    ) -> int:
        """Store a submission and return its number.

        Called before judging begins, so that a submission survives a killed process.
        """
        # The content is the key, so equal sources are one row.
        digest = hashlib.sha256(source).hexdigest()
        with connect(self.path) as connection:
            connection.execute(
                "INSERT INTO source VALUES (?, ?) ON CONFLICT DO NOTHING",
                (digest, zlib.compress(source)),
            )
            cursor = connection.execute(
                "INSERT INTO submission"
                " (catalogue, problem, content_version, kind, seed, source, handed_in)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (self.catalogue, problem, content_version, kind, seed, digest, utc_now()),
            )
            return int(cursor.lastrowid or 0)

    def save_judgement(self, number: int, judgement: Judgement) -> None:
        """Store the judgement of a submission; one that counts is never replaced."""
        body = zlib.compress(json.dumps(judgement.to_json()).encode())
        with connect(self.path) as connection:
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
                    utc_now(),
                    body,
                ),
            )

    def list_submissions(self, problem: str | None = None) -> tuple[Submission, ...]:
        """Return all submissions, or those of one problem, oldest first."""
        with connect(self.path, is_read=True) as connection:
            return self._select_submissions(connection, problem)

    def _select_submissions(
        self, connection: sqlite3.Connection, problem: str | None
    ) -> tuple[Submission, ...]:
        rows = connection.execute(
            f"{_SELECT_SUBMISSIONS} WHERE catalogue = ? AND coalesce(?, problem) = problem"
            " ORDER BY number",
            (self.catalogue, problem),
        )
        return tuple(_submission_of_row(row) for row in rows)

    def get_submission(self, number: int) -> Submission:
        """Return one submission. Raises `UnknownSubmission`."""
        with connect(self.path, is_read=True) as connection:
            return _submission_of_row(self._fetch_row(connection, _SELECT_SUBMISSIONS, number))

    def load_source(self, number: int) -> bytes:
        """Return the source of a submission, byte for byte. Raises `UnknownSubmission`."""
        with connect(self.path, is_read=True) as connection:
            return zlib.decompress(self._fetch_row(connection, _SELECT_SOURCE, number)[0])

    def load_judgement(self, number: int) -> Judgement | None:
        """Return the judgement of a submission; None if it is not judged. Raises likewise."""
        with connect(self.path, is_read=True) as connection:
            row = self._fetch_row(connection, _SELECT_JUDGEMENT, number)
        return decode_judgement(row[0])

    def _fetch_row(
        self, connection: sqlite3.Connection, select: str, number: int
    ) -> tuple[Any, ...]:
        where = " WHERE catalogue = ? AND number = ?"
        row = connection.execute(select + where, (self.catalogue, number)).fetchone()
        if row is None:
            raise UnknownSubmission(
                f"Unknown submission {number}.",
                where=str(self.path),
                fix="`shardlab practice history` lists their numbers.",
            )
        return tuple(row)

    # -------------------------------------------------------------------------------- progress

    def load_progress(self) -> Mapping[str, Progress]:
        """Return the progress of every problem that was started or attempted, by slug."""
        with connect(self.path, is_read=True) as connection:
            return self._select_progress(connection)

    def _select_progress(self, connection: sqlite3.Connection) -> Mapping[str, Progress]:
        rows = connection.execute(_SELECT_PROGRESS, {"catalogue": self.catalogue})
        return {row[0]: Progress(*row) for row in rows}

    def progress_of(self, problem: str) -> Progress:
        """Return the progress with one problem."""
        return self.load_progress().get(problem, Progress(problem))

    def latest_problem(self) -> str | None:
        """Return the problem that was started last; None before the first."""
        with connect(self.path, is_read=True) as connection:
            return self._select_latest(connection)

    def _select_latest(self, connection: sqlite3.Connection) -> str | None:
        row = connection.execute(
            "SELECT problem FROM progress WHERE catalogue = ? AND started != ''"
            " ORDER BY started DESC, rowid DESC LIMIT 1",
            (self.catalogue,),
        ).fetchone()
        return None if row is None else str(row[0])

    def load_snapshot(
        self, problem: str | None = None, drafts: Sequence[str] = ()
    ) -> PracticeSnapshot:
        """Return progress, the submissions of one problem and some drafts, in one transaction."""
        with connect(self.path, is_read=True) as connection:
            stored_drafts = [self._select_draft(connection, name) for name in drafts]
            return PracticeSnapshot(
                progress=self._select_progress(connection),
                latest_problem=self._select_latest(connection),
                submissions=self._select_submissions(connection, problem) if problem else (),
                drafts={draft.problem: draft for draft in stored_drafts if draft is not None},
            )

    def record_start(self, problem: str, path: Path | None = None) -> None:
        """Store the time, and the path of a solution file; the browser's editor has none."""
        # The latest start is the current problem, also if the clock was set back since the last
        # one: then it is a millisecond after that. Julian days are SQLite's own way to count time.
        later = (
            "SELECT strftime('%Y-%m-%dT%H:%M:%fZ', julianday(max(started)) + 1.5 / 86400000)"
            " FROM progress WHERE catalogue = ?"
        )
        change = f"path = coalesce(?, path), started = max(?, coalesce(({later}), ''))"
        text = None if path is None else str(path)
        self._update_progress(problem, change, (text, utc_now(), self.catalogue))

    def record_hint(self, problem: str, number: int) -> None:
        """Store that the first `number` hints were shown."""
        self._update_progress(problem, "hints = max(hints, ?)", (number,))

    def record_solution_request(self, problem: str) -> int:
        """Store a request for the solution, and return the number of requests so far."""
        self._update_progress(problem, "solution_asked = solution_asked + 1", ())
        return self.progress_of(problem).solution_requests

    def _update_progress(self, problem: str, change: str, values: tuple[object, ...]) -> None:
        key = (self.catalogue, problem)
        with connect(self.path) as connection:
            connection.execute(
                "INSERT INTO progress (catalogue, problem) VALUES (?, ?) ON CONFLICT DO NOTHING",
                key,
            )
            connection.execute(
                f"UPDATE progress SET {change} WHERE catalogue = ? AND problem = ?",
                (*values, *key),
            )

    # ---------------------------------------------------------------------------------- drafts

    def save_draft(self, problem: str, source: str) -> Draft:
        """Replace the draft of a problem."""
        draft = Draft(problem, source, utc_now())
        with connect(self.path) as connection:
            self._write_draft(connection, draft)
        return draft

    def _write_draft(self, connection: sqlite3.Connection, draft: Draft) -> None:
        connection.execute(
            "INSERT INTO draft VALUES (?, ?, ?, ?) ON CONFLICT (catalogue, problem)"
            " DO UPDATE SET source = excluded.source, saved = excluded.saved",
            (self.catalogue, draft.problem, draft.source, draft.saved_when),
        )

    def replace_draft(self, seen: Draft | None, problem: str, source: str) -> Draft | None:
        """Replace the draft that was seen; None if another one is there by now."""
        draft = Draft(problem, source, utc_now())
        with connect(self.path) as connection:
            if self._select_draft(connection, problem) != seen:
                return None
            self._write_draft(connection, draft)
        return draft

    def load_draft(self, problem: str) -> Draft | None:
        """Return the draft of a problem; None if there is none."""
        with connect(self.path, is_read=True) as connection:
            return self._select_draft(connection, problem)

    def _select_draft(self, connection: sqlite3.Connection, problem: str) -> Draft | None:
        row = connection.execute(
            "SELECT problem, source, saved FROM draft WHERE catalogue = ? AND problem = ?",
            (self.catalogue, problem),
        ).fetchone()
        return None if row is None else Draft(*row)

    def delete_draft(self, problem: str) -> None:
        """Remove the draft of a problem."""
        with connect(self.path) as connection:
            connection.execute(
                "DELETE FROM draft WHERE catalogue = ? AND problem = ?", (self.catalogue, problem)
            )

    # ---------------------------------------------------------------------------------- export

    def export_data(self) -> dict[str, Any]:
        """Return progress and every submission with its source and its judgement."""
        from shardlab.course.practice_export import export_practice

        return export_practice(self, self.catalogue)

    def write_zip(self, file: Path | IO[bytes]) -> None:
        """Write `practice.json`, and each submission as a file of its own, byte for byte."""
        from shardlab.course.practice_export import write_practice_zip

        write_practice_zip(self, file)


def open_store(folder: Path | None = None, catalogue: str = "") -> ProgressStore:
    """Return the user's store; its file is created by the first query or change."""
    return ProgressStore((folder or data_folder()) / FILE, catalogue)


_SELECT_SUBMISSIONS = (
    "SELECT number, problem, content_version, kind, seed, handed_in,"
    " coalesce(code, ''), coalesce(passed, 0), coalesce(counts, 1)"
    " FROM submission LEFT JOIN judgement ON submission = number"
)
_SELECT_SOURCE = "SELECT body FROM submission JOIN source ON source = digest"
_SELECT_JUDGEMENT = "SELECT body FROM submission LEFT JOIN judgement ON submission = number"
# Attempts are derived from the judgements, and are not stored a second time: a judgement that does
# not count is none, and a pass belongs to the version of the problem that it was judged with.
_SELECT_PROGRESS = """
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


def _submission_of_row(row: tuple[Any, ...]) -> Submission:
    submission = Submission(*row)
    # SQLite has no booleans.
    return replace(submission, passed=bool(submission.passed), counts=bool(submission.counts))


def decode_judgement(body: bytes | None) -> Judgement | None:
    """Return a judgement; one that cannot be decoded counts as missing and can be repeated."""
    if body is None:
        return None
    try:
        return Judgement.from_json(json.loads(zlib.decompress(body)))
    except (zlib.error, ValueError, KeyError, TypeError):
        return None


def utc_now() -> str:
    """Return the time as submissions store it."""
    # Milliseconds: two problems may be started within one second, and the order matters.
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
