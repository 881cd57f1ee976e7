"""Starts judging a submission and says how far it is.

A submission is stored first and queued then; if the process ends in between, the page shows it as
not judged, with a button that queues it again. The job's key holds the submission's number, so two
requests never queue it twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Literal

from shardlab.catalogue.problem import Problem
from shardlab.course.attempt import explain_rejected_submission, record_submission
from shardlab.course.store import Submission
from shardlab.course.workbook import Workbook
from shardlab.errors import UnknownProblem
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.server.jobs.job_service import JobService
from shardlab.server.jobs.queue import Job, JsonObject
from shardlab.server.person import Person
from shardlab.server.practice.judgement_view import (
    PartView,
    Rung,
    case_rung,
    planned_rung,
)

JudgingState = Literal["judged", "queued", "running", "stopped"]
Kind = Literal["run", "submit"]


@dataclass(frozen=True, kw_only=True)
class JudgingStatus:
    """How far the judging of one submission is."""

    state: JudgingState
    job: Job | None = None
    parts: tuple[PartView, ...] = ()  # the ladder so far, while it runs
    message: str = ""  # why it stopped
    is_starting: bool = False  # no worker is ready yet

    @property
    def is_active(self) -> bool:
        return self.state in ("queued", "running")


def start_judging(
    jobs: JobService,
    person: Person,
    workbook: Workbook,
    problem: Problem,
    source: bytes,
    *,
    kind: Kind,
) -> Submission | Judgement:
    """Store a submission and queue it. Raises `QueueFull` before anything is stored twice.

    A source that is no Python is judged at once, without a worker; then the judgement of what was
    stored is returned, or of what is too large to be stored.
    """
    store = workbook.store
    store.record_start(problem.slug)
    rejection = explain_rejected_submission(store, problem, source, kind=kind)
    if rejection is not None:
        return rejection
    submission = record_submission(store, problem, source, kind=kind)
    queue_submission(jobs, person, submission)
    return submission


def queue_submission(jobs: JobService, person: Person, submission: Submission) -> Job:
    """Queue a stored submission; one that waits or runs already is not queued twice."""
    latest, n_done = _find_jobs(jobs, person, submission)
    if latest is not None and not latest.has_ended:
        return latest
    payload = {"submission": submission.number}
    return jobs.submit(person.id, "judge", payload, key=_job_key(person, submission, n_done))


def judging_status(
    jobs: JobService, person: Person, workbook: Workbook, submission: Submission
) -> JudgingStatus:
    """Return how far a submission is."""
    if submission.is_finished and submission.counts:
        return JudgingStatus(state="judged")
    job, _ = _find_jobs(jobs, person, submission)
    if job is None or job.has_ended:
        if submission.is_finished:
            return JudgingStatus(state="judged", job=job)
        message = job.error.message if job is not None and job.error is not None else ""
        if job is not None and job.state == "cancelled":
            message = "It was cancelled."
        return JudgingStatus(state="stopped", job=job, message=message)
    if job.state == "queued":
        return JudgingStatus(
            state="queued",
            job=job,
            parts=_ladder(workbook, submission, None),
            is_starting=jobs.is_starting,
        )
    return JudgingStatus(
        state="running", job=job, parts=_ladder(workbook, submission, job.progress or {})
    )


def _job_key(person: Person, submission: Submission, n_done: int) -> str:
    # A job that is done blocks its key; judging again, after a failure of the judge, has another.
    return f"judge {person.id} {submission.number} {n_done}"


def _find_jobs(jobs: JobService, person: Person, submission: Submission) -> tuple[Job | None, int]:
    """Return the newest job of a submission, and how many are done."""
    latest: Job | None = None
    for n_done in count():
        job = jobs.queue.find_by_key(_job_key(person, submission, n_done))
        if job is None or job.state != "done":
            return job or latest, n_done
        latest = job
    raise AssertionError("unreachable")


def _ladder(
    workbook: Workbook, submission: Submission, progress: JsonObject | None
) -> tuple[PartView, ...]:
    """Return all cases of a submission: those that are judged, the next one, and the rest.

    `progress` is what the worker has reported; None while the submission waits.
    """
    from shardlab.judge.progress import plan_cases

    try:
        problem = workbook.catalogue.load_problem(submission.problem)
    except UnknownProblem:
        return ()
    judged = tuple(map(CaseResult.from_json, (progress or {}).get("cases", ())))
    rungs: dict[int, list[Rung]] = {}
    for position, case in enumerate(
        plan_cases(problem, kind=submission.kind, seed=submission.seed)
    ):
        if position < len(judged):
            rung = case_rung(judged[position])
        else:
            is_next = position == len(judged) and progress is not None
            rung = planned_rung(case, state="running" if is_next else "waiting")
        rungs.setdefault(case.part, []).append(rung)
    return tuple(
        PartView(
            number=number,
            name=problem.parts[number - 1].name,
            call=problem.parts[number - 1].call,
            rungs=tuple(part_rungs),
        )
        for number, part_rungs in rungs.items()
    )
