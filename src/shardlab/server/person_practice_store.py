"""One person's part of the server's database, as the store that the course works with."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any

from sqlalchemy import Connection, Select, bindparam, case, delete, func, select, update
from sqlalchemy.orm import Session

from shardlab.course import store as course_store
from shardlab.course.practice_export import export_practice, write_practice_zip
from shardlab.course.store import (
    Draft,
    PracticeSnapshot,
    Progress,
    Submission,
    decode_judgement,
)
from shardlab.errors import UnknownSubmission
from shardlab.judge.judge_version import judge_version
from shardlab.judge.judgement import Judgement
from shardlab.server.database.engine import Database
from shardlab.server.database.people_tables import (
    CURRENT_VERDICT,
    DraftRow,
    JudgementRow,
    ProgressRow,
    SourceRow,
    SubmissionRow,
)
from shardlab.server.database.tables import JobRow
from shardlab.server.jobs.queue import ClaimedJob, LeaseLost


@dataclass(frozen=True)
class PersonPracticeStore:
    """The submissions, progress and drafts of one person in one catalogue.

    Every query has the person in it: a number of another person's submission is unknown here.
    """

    database: Database
    folder: Path
    person: int
    catalogue: str = ""
    version: int | None = None  # of an uploaded catalogue: what new submissions are made with
    claim: ClaimedJob | None = None  # of the job that judges: no later attempt may have started

    # ----------------------------------------------------------------------------- submissions

    def add_submission(
        self, problem: str, content_version: int, source: bytes, *, kind: str, seed: int
    ) -> int:
        """Store a submission before it is judged, and return its number."""
        digest = hashlib.sha256(source).hexdigest()
        body = zlib.compress(source)
        with self.database.write() as session:
            session.execute(
                self.database.insert(SourceRow)
                .values(digest=digest, body=body)
                .on_conflict_do_nothing()
            )
            row = SubmissionRow(
                person=self.person,
                catalogue=self.catalogue,
                problem=problem,
                content_version=content_version,
                kind=kind,
                seed=str(seed),
                source=digest,
                handed_in=course_store.utc_now(),
                catalogue_version=self.version,
            )
            session.add(row)
            session.flush()
            return row.number

    def save_judgement(self, number: int, judgement: Judgement) -> None:
        """Store the verdict of this version of the judge, once; one that counts is never replaced.

        Raises `LeaseLost` if the store belongs to a job that another worker runs by now.
        """
        version = judge_version()
        with self.database.write(is_exclusive=False) as session:
            self._fetch(session, self._submissions(), number)  # else it is another person's
            # Verdicts of one submission are stored one after the other.
            session.execute(
                select(SubmissionRow.number).where(SubmissionRow.number == number).with_for_update()
            )
            self._check_lease(session)
            verdicts = JudgementRow.submission == number
            of_version = verdicts & (JudgementRow.judge_version == version)
            # What does not count says that the judge failed: it is no verdict.
            session.execute(delete(JudgementRow).where(of_version, ~JudgementRow.counts))
            has_verdict = session.scalar(
                select(JudgementRow.submission).where(verdicts, JudgementRow.counts).limit(1)
            )
            is_known = session.scalar(select(JudgementRow.submission).where(of_version).limit(1))
            is_current = is_known is None and (judgement.counts or has_verdict is None)
            if is_current:
                session.execute(update(JudgementRow).where(verdicts).values(is_current=False))
            row = self.database.insert(JudgementRow).values(
                submission=number,
                judge_version=version,
                is_current=is_current,
                code=judgement.verdict.code,
                passed=judgement.passed,
                counts=judgement.counts,
                judged=course_store.utc_now(),
                body=zlib.compress(json.dumps(judgement.to_json()).encode()),
            )
            session.execute(
                row.on_conflict_do_nothing(
                    index_elements=[JudgementRow.submission, JudgementRow.judge_version]
                )
            )

    def _check_lease(self, session: Session) -> None:
        """Raise `LeaseLost` unless the job of this store still belongs to its worker."""
        if self.claim is None:
            return
        job = select(JobRow.number).where(
            JobRow.id == self.claim.id,
            JobRow.attempt == self.claim.attempt,
            JobRow.state == "running",
        )
        if session.scalar(job.with_for_update()) is None:
            raise LeaseLost

    def has_verdict(self, number: int, version: str) -> bool:
        """Return whether a version of the judge has judged a submission."""
        query = select(JudgementRow.submission).where(
            JudgementRow.submission == number,
            JudgementRow.judge_version == version,
            JudgementRow.counts,
        )
        with self.database.read() as session:
            return session.scalar(query) is not None

    def list_submissions(self, problem: str | None = None) -> tuple[Submission, ...]:
        """Return all submissions, or those of one problem, oldest first."""
        query = self._submissions().order_by(SubmissionRow.number)
        if problem is not None:
            query = query.where(SubmissionRow.problem == problem)
        with self.database.read() as session:
            return tuple(_submission_of(row[0], row[1]) for row in session.execute(query))

    def get_submission(self, number: int) -> Submission:
        """Return one submission. Raises `UnknownSubmission`, also for another person's."""
        with self.database.read() as session:
            row = self._fetch(session, self._submissions(), number)
            return _submission_of(row[0], row[1])

    def load_source(self, number: int) -> bytes:
        """Return the source of a submission. Raises `UnknownSubmission`."""
        query = select(SourceRow.body).join(SubmissionRow, SubmissionRow.source == SourceRow.digest)
        with self.database.read() as session:
            return zlib.decompress(self._fetch(session, query.where(self._is_mine()), number)[0])

    def load_judgement(self, number: int) -> Judgement | None:
        """Return the judgement; None if it is not judged. Raises `UnknownSubmission`."""
        with self.database.read() as session:
            _, row = self._fetch(session, self._submissions(), number)
            return decode_judgement(None if row is None else row.body)

    def _is_mine(self) -> Any:
        return (SubmissionRow.person == self.person) & (SubmissionRow.catalogue == self.catalogue)

    def _submissions(self) -> Select[SubmissionRow, JudgementRow]:
        return (
            select(SubmissionRow, JudgementRow)
            .outerjoin(JudgementRow, CURRENT_VERDICT)
            .where(self._is_mine())
        )

    def _fetch(self, session: Session, query: Any, number: int) -> tuple[Any, ...]:
        row = session.execute(query.where(SubmissionRow.number == number)).first()
        if row is None:
            raise UnknownSubmission(
                f"Unknown submission {number}.",
                where="the server's database",
                fix="the history of the problem lists their numbers.",
            )
        return tuple(row)

    # -------------------------------------------------------------------------------- progress

    def load_progress(self) -> Mapping[str, Progress]:
        """Return the progress of every problem that was started or attempted, by slug."""
        return self.load_snapshot().progress

    def load_snapshot(
        self, problem: str | None = None, drafts: Sequence[str] = ()
    ) -> PracticeSnapshot:
        """Return progress, the submissions of one problem and some drafts, in one transaction."""
        key = {"person": self.person, "catalogue": self.catalogue}
        with self.database.read() as session:
            connection = session.connection()
            notes = connection.execute(_NOTES, key).all()
            attempts = connection.execute(_ATTEMPTS, key).all()
            rows = connection.execute(_SUBMISSIONS, {**key, "problem": problem}) if problem else ()
            submissions = tuple(_submission_of_columns(row) for row in rows)
            return PracticeSnapshot(
                progress=_progress_of_rows(notes, attempts),
                # The rows are ordered by their start; `started` is empty for hints alone.
                latest_problem=notes[-1].problem if notes and notes[-1].started else None,
                submissions=submissions,
                drafts=_select_drafts(connection, key, drafts),
            )

    def progress_of(self, problem: str) -> Progress:
        """Return the progress with one problem."""
        return self.load_progress().get(problem, Progress(problem))

    def latest_problem(self) -> str | None:
        """Return the problem that was started last; None before the first."""
        query = (
            select(ProgressRow.problem)
            .where(*self._key(ProgressRow), ProgressRow.started != "")
            .order_by(ProgressRow.started.desc(), ProgressRow.id.desc())
            .limit(1)
        )
        with self.database.read() as session:
            return session.scalar(query)

    def record_start(self, problem: str, path: Path | None = None) -> None:
        """Store the time, and the path of a solution file if there is one."""
        with self.database.write() as session:
            latest = session.scalar(
                select(func.max(ProgressRow.started)).where(*self._key(ProgressRow))
            )
            row = self._progress_row(session, problem)
            row.started = max(course_store.utc_now(), _just_after(latest or ""))
            row.path = row.path if path is None else str(path)

    def record_hint(self, problem: str, number: int) -> None:
        """Store that the first `number` hints were shown."""
        with self.database.write() as session:
            row = self._progress_row(session, problem)
            row.hints = max(row.hints, number)

    def record_solution_request(self, problem: str) -> int:
        """Store a request for the solution, and return the number of requests so far."""
        with self.database.write() as session:
            row = self._progress_row(session, problem)
            row.solution_requests += 1
            return row.solution_requests

    def _progress_row(self, session: Session, problem: str) -> ProgressRow:
        key = {"person": self.person, "catalogue": self.catalogue, "problem": problem}
        row = session.scalar(select(ProgressRow).filter_by(**key))
        if row is None:
            row = ProgressRow(**key)
            session.add(row)
            session.flush()  # sets the defaults
        return row

    def _key(self, table: type[ProgressRow] | type[DraftRow]) -> tuple[Any, ...]:
        return (table.person == self.person, table.catalogue == self.catalogue)

    # ---------------------------------------------------------------------------------- drafts

    def save_draft(self, problem: str, source: str) -> Draft:
        """Replace the draft of a problem."""
        draft = Draft(problem, source, course_store.utc_now())
        with self.database.write(is_exclusive=False) as session:
            self._write_draft(session, draft)
        return draft

    def replace_draft(self, seen: Draft | None, problem: str, source: str) -> Draft | None:
        """Replace the draft that was seen; None if another one is there by now."""
        draft = Draft(problem, source, course_store.utc_now())
        with self.database.write() as session:
            row = session.scalar(self._draft_query(problem))
            if (None if row is None else Draft(row.problem, row.source, row.saved)) != seen:
                return None
            self._write_draft(session, draft)
        return draft

    def _write_draft(self, session: Session, draft: Draft) -> None:
        content = {"source": draft.source, "saved": draft.saved_when}
        row = self.database.insert(DraftRow).values(
            person=self.person, catalogue=self.catalogue, problem=draft.problem, **content
        )
        session.execute(
            row.on_conflict_do_update(
                index_elements=["person", "catalogue", "problem"], set_=content
            )
        )

    def _draft_query(self, problem: str) -> Select[DraftRow]:
        return select(DraftRow).where(*self._key(DraftRow), DraftRow.problem == problem)

    def load_draft(self, problem: str) -> Draft | None:
        """Return the draft of a problem; None if there is none."""
        with self.database.read() as session:
            row = session.scalar(self._draft_query(problem))
            return None if row is None else Draft(row.problem, row.source, row.saved)

    def delete_draft(self, problem: str) -> None:
        """Remove the draft of a problem."""
        query = delete(DraftRow).where(*self._key(DraftRow), DraftRow.problem == problem)
        with self.database.write() as session:
            session.execute(query)

    # ---------------------------------------------------------------------------------- export

    def export_data(self) -> dict[str, Any]:
        """Return progress and every submission with its source and its judgement."""
        return export_practice(self, self.catalogue)

    def write_zip(self, file: Path | IO[bytes]) -> None:
        """Write `practice.json`, and each submission as a file of its own."""
        write_practice_zip(self, file)


# The statements of a page, composed once: composing costs more than SQLite's own work. All rows are
# of one person in one catalogue.
_OWN_SUBMISSION = (SubmissionRow.person == bindparam("person")) & (
    SubmissionRow.catalogue == bindparam("catalogue")
)
_NOTES = (
    select(
        ProgressRow.problem,
        ProgressRow.path,
        ProgressRow.started,
        ProgressRow.hints,
        ProgressRow.solution_requests,
    )
    .where(
        ProgressRow.person == bindparam("person"), ProgressRow.catalogue == bindparam("catalogue")
    )
    .order_by(ProgressRow.started, ProgressRow.id)
)
_IS_SUBMIT = SubmissionRow.kind == "submit"
_IS_PASS = _IS_SUBMIT & JudgementRow.passed
# Attempts are derived from the judgements, and are not stored a second time.
_ATTEMPTS = (
    select(
        SubmissionRow.problem,
        func.sum(case((SubmissionRow.kind == "run", 1), else_=0)),
        func.sum(case((_IS_SUBMIT, 1), else_=0)),
        func.min(case((_IS_PASS, JudgementRow.judged))),
        func.max(case((_IS_PASS, SubmissionRow.content_version))),
    )
    .join(JudgementRow, CURRENT_VERDICT)
    .where(_OWN_SUBMISSION, JudgementRow.counts)
    .group_by(SubmissionRow.problem)
)
_SUBMISSIONS = (
    select(
        SubmissionRow.number,
        SubmissionRow.problem,
        SubmissionRow.content_version,
        SubmissionRow.kind,
        SubmissionRow.seed,
        SubmissionRow.handed_in,
        JudgementRow.code,
        JudgementRow.passed,
        JudgementRow.counts,
    )
    .outerjoin(JudgementRow, CURRENT_VERDICT)
    .where(_OWN_SUBMISSION, SubmissionRow.problem == bindparam("problem"))
    .order_by(SubmissionRow.number)
)
_DRAFTS = select(DraftRow.problem, DraftRow.source, DraftRow.saved).where(
    DraftRow.person == bindparam("person"),
    DraftRow.catalogue == bindparam("catalogue"),
    DraftRow.problem.in_(bindparam("problems", expanding=True)),
)


def _progress_of_rows(notes: Iterable[Any], attempts: Iterable[Any]) -> Mapping[str, Progress]:
    progress = {
        row.problem: Progress(
            problem=row.problem,
            path=row.path,
            started_when=row.started,
            hints=row.hints,
            solution_requests=row.solution_requests,
        )
        for row in notes
    }
    for problem, n_runs, n_submits, solved_when, solved_version in attempts:
        progress[problem] = replace(
            progress.get(problem, Progress(problem)),
            n_runs=n_runs,
            n_submits=n_submits,
            solved_when=solved_when or "",
            solved_version=solved_version or 0,
        )
    return progress


def _select_drafts(
    connection: Connection, key: Mapping[str, Any], problems: Sequence[str]
) -> Mapping[str, Draft]:
    if not problems:
        return {}
    rows = connection.execute(_DRAFTS, {**key, "problems": list(problems)})
    return {row.problem: Draft(row.problem, row.source, row.saved) for row in rows}


def _submission_of_columns(row: Any) -> Submission:
    number, problem, content_version, kind, seed, handed_in, code, passed, counts = row
    return Submission(
        number=number,
        problem=problem,
        content_version=content_version,
        kind=kind,
        seed=int(seed),
        when=handed_in,
        code=code or "",
        passed=bool(passed),
        counts=counts is None or counts,
    )


def _submission_of(row: SubmissionRow, judgement: JudgementRow | None) -> Submission:
    return Submission(
        number=row.number,
        problem=row.problem,
        content_version=row.content_version,
        kind=row.kind,
        seed=int(row.seed),
        when=row.handed_in,
        code="" if judgement is None else judgement.code,
        passed=judgement is not None and judgement.passed,
        counts=judgement is None or judgement.counts,
    )


def _just_after(time: str) -> str:
    """Return a millisecond later, so that a clock that was set back does not change the order."""
    if not time:
        return ""
    later = datetime.fromisoformat(time) + timedelta(milliseconds=1)
    return later.isoformat(timespec="milliseconds").replace("+00:00", "Z")
