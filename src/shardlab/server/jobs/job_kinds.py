"""What a worker does for each kind of job."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import select

from shardlab.catalogue.problem import Problem
from shardlab.catalogue.tracks import load_catalogue
from shardlab.course.attempt import judge_submission
from shardlab.course.cancellable_pool import CancellablePool
from shardlab.course.debug_program import debug_program
from shardlab.course.store import PracticeStore, Submission, open_store
from shardlab.errors import CaseNotShown, LabError
from shardlab.judge.judge import replay_case
from shardlab.judge.judge_version import judge_version
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.recording.recording import Recording
from shardlab.sandbox.process import SandboxPool
from shardlab.server.catalogue_audit import audit_upload
from shardlab.server.catalogue_keys import is_uploaded_key, uploaded_id
from shardlab.server.confined.confined_client import ConfinedFailure, run_confined
from shardlab.server.database.engine import Database
from shardlab.server.database.people_tables import SubmissionRow
from shardlab.server.jobs.queue import (
    ClaimedJob,
    JobError,
    JobKind,
    JobOutcome,
    JsonObject,
    NewRecording,
)
from shardlab.server.people.catalogues import AuditFault, Catalogues
from shardlab.server.people.refusals import NotThere, Refusal
from shardlab.server.person_practice_store import PersonPracticeStore

_MAX_RESULT_CHARACTERS = 2_000_000  # of JSON in the row of a job


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """What a job may use."""

    pool: SandboxPool
    report_progress: Callable[[JsonObject], None]
    database: Database
    data_folder: Path
    is_local: bool
    catalogue: str | None

    def open_submission(
        self, person: int, number: int, claim: ClaimedJob | None = None
    ) -> SubmissionJob:
        """Return a submission of a person, its store, and its problem.

        With `claim`, a judgement is stored only as long as no other worker has the job.
        That of the server's own catalogue is read as it is now: its author may have changed it
        since the last job. That of an uploaded one is of the version that was submitted to.
        """
        key = "" if self.catalogue is None else str(Path(self.catalogue).resolve())
        if self.is_local:
            return self._open_in(open_store(self.data_folder, key), number)
        query = select(SubmissionRow.catalogue, SubmissionRow.catalogue_version).where(
            SubmissionRow.number == number, SubmissionRow.person == person
        )
        with self.database.read() as session:
            catalogue, version = session.execute(query).first() or (key, None)
        store = PersonPracticeStore(self.database, self.data_folder, person, catalogue, claim=claim)
        if not is_uploaded_key(catalogue):
            return self._open_in(replace(store, catalogue=key), number)
        submission = store.get_submission(number)
        uploaded = self.catalogues.open_for_submission(uploaded_id(catalogue), version)
        problem = uploaded.catalogue.load_problem(submission.problem)
        return SubmissionJob(store=store, submission=submission, problem=problem)

    def _open_in(self, store: PracticeStore, number: int) -> SubmissionJob:
        submission = store.get_submission(number)
        problem = load_catalogue(self.catalogue).load_problem(submission.problem)
        return SubmissionJob(store=store, submission=submission, problem=problem)

    @property
    def catalogues(self) -> Catalogues:
        """Return the catalogues that teachers have uploaded."""
        return Catalogues(self.database, self.data_folder)


@dataclass(frozen=True, kw_only=True)
class SubmissionJob:
    """What a job about one submission works with."""

    store: PracticeStore
    submission: Submission
    problem: Problem


def run_job(claim: ClaimedJob, context: JobContext) -> JobOutcome:
    """Return the outcome of a job. Raises only what is a fault of ours, or a cancellation."""
    try:
        return _KINDS[claim.kind](claim, context)
    except ConfinedFailure as failure:
        return JobOutcome(state="failed", error=failure.error)
    except LabError as error:
        message = f"{error.what} ({error.where})" if error.where else error.what
        job_error = JobError(kind=error.code, message=message, fix=error.fix or "")
        return JobOutcome(state="failed", error=job_error)


# ------------------------------------------------------------------------------- recordings


def _record(claim: ClaimedJob, context: JobContext) -> JobOutcome:
    return _record_program(claim, context, claim.payload)


def _record_debug_case(claim: ClaimedJob, context: JobContext) -> JobOutcome:
    """Record one case of a judged submission, whose inputs its person may see."""
    opened = context.open_submission(claim.person, claim.payload["submission"])
    store, submission = opened.store, opened.submission
    judgement = store.load_judgement(submission.number)
    if judgement is None:
        raise CaseNotShown(
            "The submission is not judged yet.",
            where=f"submission {submission.number}",
            fix="wait for its judgement.",
        )
    source = store.load_source(submission.number)
    program = debug_program(
        opened.problem, source, judgement, claim.payload["case"], pool=context.pool
    )
    payload = {
        "source": program.source,
        "target": program.target,
        "mesh": program.mesh or None,
        "hardware": None,
        "edit": None,
    }
    title = f"Submission {submission.number}, {program.title}"
    return _record_program(claim, context, payload, title=title)


def _record_program(
    claim: ClaimedJob, context: JobContext, payload: JsonObject, *, title: str = ""
) -> JobOutcome:
    data = run_confined(context.pool, "record", payload)
    # What came out of the sandbox is not trusted: only what our own records read is stored.
    recording = Recording.from_json(data)
    if title:
        recording = replace(recording, title=title)
    body = gzip.compress(recording.to_json_text().encode(), 6)
    return JobOutcome(
        state="done",
        result={"recording": claim.id, "title": recording.title[:200]},
        recording=NewRecording(title=recording.title, source=payload["source"], body=body),
    )


# ---------------------------------------------------------------------------------- judging


def _judge(claim: ClaimedJob, context: JobContext) -> JobOutcome:
    # A submission that is judged once more, by another version, is a job of nobody.
    person = claim.payload.get("person", claim.person)
    opened = context.open_submission(person, claim.payload["submission"], claim)
    store, submission = opened.store, opened.submission
    # A worker that ended after it stored the judgement has done the work: none is judged twice.
    if _has_verdict(claim, store, submission):
        judgement = store.load_judgement(submission.number)
        if judgement is not None:
            return _judged_outcome(submission.number, judgement)
    planned: JsonObject = {}
    cases: list[JsonObject] = []

    def add_case(result: CaseResult) -> None:
        cases.append(result.to_json())

    def report(event: JsonObject) -> None:
        if event["event"] == "started":
            planned.update(event)
        # Complete each time, so that a page that connects late needs nothing else.
        progress = {"n_cases": planned["n_cases"], "planned": planned["cases"], "cases": cases}
        context.report_progress({**progress, "n_judged": len(cases), "event": event["event"]})

    judgement = judge_submission(
        store,
        context.pool,
        opened.problem,
        submission,
        add_case,
        report_progress=report,
    )
    return _judged_outcome(submission.number, judgement)


def _has_verdict(claim: ClaimedJob, store: PracticeStore, submission: Submission) -> bool:
    if claim.payload.get("is_rejudged") and isinstance(store, PersonPracticeStore):
        return store.has_verdict(submission.number, judge_version())
    return submission.is_finished and submission.counts


def _judged_outcome(number: int, judgement: Judgement) -> JobOutcome:
    result = {
        "submission": number,
        "passed": judgement.passed,
        "counts": judgement.counts,
        "code": judgement.verdict.code,
    }
    return JobOutcome(state="done", result=result)


def _replay(claim: ClaimedJob, context: JobContext) -> JobOutcome:
    """Judge one case of a submission once more. Nothing is stored: one case is no attempt."""
    opened = context.open_submission(claim.person, claim.payload["submission"])
    submission = opened.submission
    judgement = replay_case(
        context.pool,
        opened.problem,
        opened.store.load_source(submission.number),
        kind=submission.kind,
        seed=submission.seed,
        part=claim.payload["part"],
        number=claim.payload["case"],
    )
    return JobOutcome(state="done", result={"judgement": judgement.to_json()})


# ----------------------------------------------------------------------- uploaded catalogues


def _audit_catalogue(claim: ClaimedJob, context: JobContext) -> JobOutcome:
    """Audit a version of an uploaded catalogue; its code runs in the sandbox only."""
    version = claim.payload["version"]
    catalogues = context.catalogues
    try:
        catalogue = catalogues.open_version(version).catalogue
    except NotThere:
        return JobOutcome(state="cancelled")  # deleted meanwhile
    except Refusal as error:
        faults = [AuditFault(problem="", rule="problem", message=error.message)]
    else:
        faults = audit_upload(context.pool, catalogue, context.report_progress)
    if isinstance(context.pool, CancellablePool) and context.pool.is_cancelled:
        # What an audit makes of its processes being ended says nothing about the catalogue.
        return JobOutcome(state="cancelled")
    catalogues.finish_audit(version, faults)
    return JobOutcome(state="done", result={"version": version, "n_faults": len(faults)})


# ------------------------------------------------------------------------------ small results


def _run_confined_kind(claim: ClaimedJob, context: JobContext) -> JobOutcome:
    """Run a kind whose result is small JSON, stored with the job."""
    data = run_confined(context.pool, claim.kind, claim.payload)
    if not isinstance(data, dict) or len(json.dumps(data)) > _MAX_RESULT_CHARACTERS:
        error = JobError(kind="output", message="The result is too large.")
        return JobOutcome(state="failed", error=error)
    return JobOutcome(state="done", result=data)


_KINDS: dict[JobKind, Callable[[ClaimedJob, JobContext], JobOutcome]] = {
    "record": _record,
    "debug_case": _record_debug_case,
    "judge": _judge,
    "replay": _replay,
    "edits": _run_confined_kind,
    "advice": _run_confined_kind,
    "audit_catalogue": _audit_catalogue,
}
