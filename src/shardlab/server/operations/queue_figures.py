"""The queue and its workers as an operator sees them: depth, age, failures, what is slow.

Everything is read from the tables of jobs, so it is the same in every process on the database.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import cast, get_args

from sqlalchemy import func, select

from shardlab.server.database.engine import Database
from shardlab.server.database.people_tables import PersonRow
from shardlab.server.database.tables import JobRow
from shardlab.server.jobs.job_service import JobService
from shardlab.server.jobs.queue import JobKind
from shardlab.server.jobs.worker_registry import RegisteredWorker
from shardlab.server.operations.job_ledger import JobFault, job_fault, problems_of_submissions
from shardlab.server.operations.request_id import take_request_id

_ACTIVE = ("reserved", "queued", "running")
_MAX_DURATIONS = 2000  # of the newest submissions
_MIN_RUNS = 1
DEAD_AFTER_SECONDS = 45.0  # without a heartbeat: three leases


@dataclass(frozen=True, kw_only=True)
class KindFigures:
    """The jobs of one kind that have not ended."""

    kind: JobKind
    n_waiting: int = 0
    n_running: int = 0
    oldest_wait: float = 0.0  # seconds


@dataclass(frozen=True, kw_only=True)
class WorkerView:
    """One worker process."""

    name: str
    host: str
    pid: int
    state: str  # starting, ready, failed, draining ...
    level: str = ""  # of its sandbox
    can_judge: bool = False
    heartbeat_age: float = 0.0  # seconds
    n_starts: int = 1
    failure: str = ""

    @property
    def is_alive(self) -> bool:
        """Return whether it takes jobs: ready, and heard of lately."""
        return self.state == "ready" and self.heartbeat_age < DEAD_AFTER_SECONDS


@dataclass(frozen=True, kw_only=True)
class ProblemTime:
    """How long the submissions to one problem took to judge, without their wait in the queue."""

    problem: str
    n_judged: int
    p50: float
    p95: float


@dataclass(frozen=True, kw_only=True)
class OwnFailure:
    """A job that failed because of shardlab or its machine, not because of the program."""

    id: str
    kind: str
    person: str
    finished: float | None
    fault: JobFault
    message: str
    request_id: str


def queue_by_kind(database: Database, *, now: float | None = None) -> tuple[KindFigures, ...]:
    """Return the depth of the queue for every kind of job, also for those that have none."""
    moment = time.time() if now is None else now
    query = (
        select(JobRow.kind, JobRow.state, func.count(), func.min(JobRow.created))
        .where(JobRow.state.in_(("queued", "running")))
        .group_by(JobRow.kind, JobRow.state)
    )
    counts: dict[tuple[str, str], tuple[int, float]] = {}
    with database.read() as session:
        for kind, state, n_jobs, oldest in session.execute(query):
            counts[kind, state] = (n_jobs, oldest)
    figures = []
    for kind in cast("tuple[JobKind, ...]", get_args(JobKind)):
        n_waiting, oldest = counts.get((kind, "queued"), (0, moment))
        n_running, _ = counts.get((kind, "running"), (0, moment))
        wait = max(0.0, moment - oldest)
        figures.append(
            KindFigures(kind=kind, n_waiting=n_waiting, n_running=n_running, oldest_wait=wait)
        )
    return tuple(figures)


def count_active_jobs(database: Database) -> int:
    """Return how many jobs take room in the queue."""
    query = select(func.count()).select_from(JobRow).where(JobRow.state.in_(_ACTIVE))
    with database.read() as session:
        return session.scalar(query) or 0


def list_workers(jobs: JobService) -> tuple[WorkerView, ...]:
    """Return the workers: of all machines on PostgreSQL, otherwise the processes of this server."""
    if jobs.database.is_postgresql:
        now = jobs.database.now()
        return tuple(_to_view(worker, now) for worker in jobs.list_registered_workers())
    # A pipe ends with its process, so what the supervisor knows is never older than this moment.
    host = socket.gethostname()
    return tuple(
        WorkerView(
            name=f"worker {number}",
            host=host,
            pid=status.pid,
            state=status.state,
            level=status.level,
            can_judge=status.can_judge,
            n_starts=status.n_starts,
            failure=status.failure,
        )
        for number, status in enumerate(jobs.worker_status, start=1)
    )


def _to_view(worker: RegisteredWorker, now: float) -> WorkerView:
    has_died = worker.state != "ended" and not worker.is_alive
    return WorkerView(
        name=worker.name,
        host=worker.host,
        pid=worker.pid,
        state="dead" if has_died else worker.state,
        level=worker.sandbox_level,
        can_judge=worker.can_judge,
        heartbeat_age=max(0.0, now - worker.heartbeat),
    )


def slowest_problems(database: Database, limit: int = 10) -> tuple[ProblemTime, ...]:
    """Return the problems whose submissions take longest, of the newest submissions."""
    query = (
        select(JobRow.payload, JobRow.started, JobRow.finished)
        .where(JobRow.kind == "judge", JobRow.state == "done")
        .order_by(JobRow.number.desc())
        .limit(_MAX_DURATIONS)
    )
    with database.read() as session:
        rows = [
            (int(json.loads(payload)["submission"]), finished - started)
            for payload, started, finished in session.execute(query)
            if started is not None and finished is not None
        ]
        problems = problems_of_submissions(session, [number for number, _ in rows])
    durations: dict[str, list[float]] = defaultdict(list)
    for number, seconds in rows:
        if number in problems:
            durations[problems[number]].append(seconds)
    times = [
        ProblemTime(
            problem=problem,
            n_judged=len(seconds),
            p50=quantile(seconds, 0.5),
            p95=quantile(seconds, 0.95),
        )
        for problem, seconds in durations.items()
    ]
    return tuple(sorted(times, key=lambda row: -row.p95)[:limit])


def quantile(values: list[float], share: float) -> float:
    """Return the smallest value that is at least as large as this share of all.

    >>> quantile([3.0, 1.0, 2.0], 0.5), quantile([3.0, 1.0, 2.0], 0.95)
    (2.0, 3.0)
    """
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


def own_failures(database: Database, limit: int = 20) -> tuple[OwnFailure, ...]:
    """Return the newest jobs that failed through no fault of the person's program."""
    query = (
        select(JobRow, PersonRow.name)
        .outerjoin(PersonRow, PersonRow.id == JobRow.person)
        .where(
            (JobRow.state == "failed") | ((JobRow.kind == "judge") & (JobRow.state == "done")),
        )
        .order_by(JobRow.number.desc())
        .limit(_MAX_DURATIONS)
    )
    failures: list[OwnFailure] = []
    with database.read() as session:
        for row, name in session.execute(query):
            error = json.loads(row.error) if row.error else None
            result = json.loads(row.result) if row.result and row.kind == "judge" else None
            fault = job_fault(row.state, error, result)
            if fault in ("", "program"):
                continue
            _, request_id = take_request_id(json.loads(row.payload))
            message = "The judge itself failed; the verdict IE is not counted."
            failures.append(
                OwnFailure(
                    id=row.id,
                    kind=row.kind,
                    person=name or "",
                    finished=row.finished,
                    fault=fault,
                    message=str(error.get("message", ""))[:300] if error else message,
                    request_id=request_id,
                )
            )
            if len(failures) == limit:
                break
    return tuple(failures)


def process_host() -> str:
    """Return what tells this web process from the others."""
    return f"{socket.gethostname()}:{os.getpid()}"
