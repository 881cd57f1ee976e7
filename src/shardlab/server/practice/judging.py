"""Starts judging a submission and says how far it is.

On a server with accounts the submission and its job are stored in one transaction. In local mode
submissions are in the terminal's database, where no transaction of the queue reaches: room in the
queue is reserved first, then the submission is stored, then it is queued. If the process ends in
between, the next start finds the reservation and queues what was stored. The job's key holds the
submission's number, so none is queued twice.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Literal

from shardlab.catalogue.problem import Problem
from shardlab.course.attempt import explain_rejected_submission, record_submission
from shardlab.course.store import PracticeStore, Submission
from shardlab.course.workbook import Workbook
from shardlab.errors import UnknownProblem
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.server.jobs.job_service import JobService
from shardlab.server.jobs.queue import Job, JsonObject, Reservation
from shardlab.server.person import Person
from shardlab.server.person_practice_store import PersonPracticeStore
from shardlab.server.practice.judgement_view import (
    PartView,
    Rung,
    case_rung,
    planned_rung,
)

JudgingState = Literal["judged", "queued", "running", "stopped"]
Kind = Literal["run", "submit"]
# Of the same person and problem, newest first: more than a person can have in the queue. All who
# submit wait meanwhile, and thousands may have been cancelled.
_MAX_COMPARED = 32


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
    """Store a submission and queue it. Raises `QueueFull` before anything is stored.

    The same source once more, while the first still waits or is judged, is the same submission: a
    second click on the button is no second attempt. A source that is no Python is judged at once,
    without a worker; then the judgement of what was stored is returned, or of what is too large to
    be stored.
    """
    store = workbook.store
    if isinstance(store, PersonPracticeStore):
        with store.database.transaction():
            # The lock of the transaction excludes the other processes too.
            same = _find_same(jobs, person, store, problem, source, kind)
            new = same or _store_submission(store, problem, source, kind)
            if same is None and isinstance(new, Submission) and not new.store_error:
                _queue(jobs, person, new)
        jobs.wake_workers()
        return new
    with jobs.submission_lock:
        same = _find_same(jobs, person, store, problem, source, kind)
        return same or _reserve_and_store(jobs, person, store, problem, source, kind)


def _find_same(
    jobs: JobService,
    person: Person,
    store: PracticeStore,
    problem: Problem,
    source: bytes,
    kind: Kind,
) -> Submission | None:
    """Return the same submission that waits or is judged already."""
    for submission in store.list_submissions(problem.slug)[: -_MAX_COMPARED - 1 : -1]:
        if _is_same_and_active(jobs, person, store, submission, source, kind):
            return submission
    return None


def _store_submission(
    store: PracticeStore, problem: Problem, source: bytes, kind: Kind
) -> Submission | Judgement:
    store.record_start(problem.slug)
    rejection = explain_rejected_submission(store, problem, source, kind=kind)
    return rejection or record_submission(store, problem, source, kind=kind)


def _reserve_and_store(
    jobs: JobService,
    person: Person,
    store: PracticeStore,
    problem: Problem,
    source: bytes,
    kind: Kind,
) -> Submission | Judgement:
    earlier = store.list_submissions(problem.slug)
    reservation = jobs.queue.reserve(
        person.id,
        "judge",
        {
            "catalogue": store.catalogue,
            "problem": problem.slug,
            "kind": kind,
            "digest": _digest(source),
            "after": earlier[-1].number if earlier else 0,
        },
    )
    try:
        new = _store_submission(store, problem, source, kind)
    except Exception:
        jobs.queue.drop_reservation(reservation)
        raise
    if isinstance(new, Judgement) or new.store_error:
        jobs.queue.drop_reservation(reservation)
    else:
        queue_submission(jobs, person, new, reservation)
    return new


def _is_same_and_active(
    jobs: JobService,
    person: Person,
    store: PracticeStore,
    submission: Submission,
    source: bytes,
    kind: Kind,
) -> bool:
    if submission.kind != kind or (submission.is_finished and submission.counts):
        return False
    job, _ = _find_jobs(jobs, person, submission)
    if job is None or job.has_ended or job.is_cancel_requested:
        return False
    return store.load_source(submission.number) == source


def queue_submission(
    jobs: JobService,
    person: Person,
    submission: Submission,
    reservation: Reservation | None = None,
) -> Job:
    """Queue a stored submission; one that waits or runs already is not queued twice."""
    job = _queue(jobs, person, submission, reservation)
    jobs.wake_workers()
    return job


def _queue(
    jobs: JobService,
    person: Person,
    submission: Submission,
    reservation: Reservation | None = None,
) -> Job:
    latest, n_done = _find_jobs(jobs, person, submission)
    if latest is not None and not latest.has_ended:
        return latest
    payload = {"submission": submission.number}
    key = _job_key(person, submission, n_done)
    return jobs.queue.enqueue(person.id, "judge", payload, key=key, reservation=reservation)


def queue_reserved_submissions(
    jobs: JobService, open_practice_store: Callable[[Person, str], PracticeStore]
) -> None:
    """Queue what was stored before the server ended and is in no job yet."""
    for reservation in jobs.queue.list_reservations():
        person = Person(id=reservation.person, name="", role="learner")
        submission = _find_reserved(jobs, person, open_practice_store, reservation)
        if submission is None:  # the server ended before it was stored, and accepted nothing
            jobs.queue.drop_reservation(reservation)
        else:
            queue_submission(jobs, person, submission, reservation)


def _find_reserved(
    jobs: JobService,
    person: Person,
    open_practice_store: Callable[[Person, str], PracticeStore],
    reservation: Reservation,
) -> Submission | None:
    payload = reservation.payload
    store = open_practice_store(person, payload["catalogue"])
    for submission in store.list_submissions(payload["problem"]):
        if (
            submission.number > payload["after"]
            and submission.kind == payload["kind"]
            and not submission.is_finished
            and hmac.compare_digest(
                _digest(store.load_source(submission.number)), payload["digest"]
            )
            and _find_jobs(jobs, person, submission) == (None, 0)
        ):
            return submission
    return None


def _digest(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()


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
