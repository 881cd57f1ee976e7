"""Counts the jobs that have ended, in whatever process and on whatever machine they ran.

A worker reports to the database only. So the jobs that have ended since the last scrape are read
there, and each is counted once.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from shardlab.errors import ReferenceFailed
from shardlab.server.catalogue_keys import is_uploaded_key
from shardlab.server.database.engine import Database
from shardlab.server.database.people_tables import SubmissionRow
from shardlab.server.database.tables import JobRow
from shardlab.server.operations.metrics import ServerMetrics

JobFault = Literal["", "program", "shardlab", "sandbox"]
# Clocks of several machines differ, and a transaction can commit after a later one.
_OVERLAP_SECONDS = 120.0
_MAX_JOBS = 10_000  # of one scrape; the next one continues
UPLOADED = "uploaded"  # one label for the problems of all teachers: their number has no bound
UNKNOWN = "unknown"  # in local mode submissions are in another database
_PACKED = 500  # numbers in one statement


def job_fault(state: str, error: dict[str, Any] | None, result: dict[str, Any] | None) -> JobFault:
    """Return whose fault the end of a job is; empty if it ended well or was cancelled.

    >>> [job_fault("failed", {"kind": kind}, None) for kind in ("syntax", "internal", "sandbox")]
    ['program', 'shardlab', 'sandbox']
    >>> job_fault("done", None, {"code": "IE", "counts": False})  # a verdict that is not counted
    'shardlab'
    """
    if state == "done":
        return "shardlab" if (result or {}).get("counts") is False else ""
    if state != "failed":
        return ""
    kind = str((error or {}).get("kind", "internal"))
    if kind.startswith("sandbox") and kind != ReferenceFailed.code:  # that one is the teacher's
        return "sandbox"
    return "shardlab" if kind == "internal" or kind.startswith(("store", "server")) else "program"


def problems_of_submissions(session: Session, numbers: list[int]) -> dict[int, str]:
    """Return the problem of each submission that the server's database has."""
    problems = {}
    for first in range(0, len(numbers), _PACKED):
        query = select(SubmissionRow.number, SubmissionRow.problem, SubmissionRow.catalogue).where(
            SubmissionRow.number.in_(numbers[first : first + _PACKED])
        )
        for number, problem, catalogue in session.execute(query):
            problems[number] = UPLOADED if is_uploaded_key(catalogue) else problem
    return problems


class JobLedger:
    """Counts ended jobs into the metrics of this process."""

    def __init__(
        self, database: Database, metrics: ServerMetrics, clock: Callable[[], float] = time.time
    ) -> None:
        self._database, self._metrics = database, metrics
        self._lock = threading.Lock()  # two scrapes at the same moment
        # What ended before is no event of this process: its counters begin at zero.
        self._start = self._newest = clock()
        self._counted: dict[int, float] = {}  # number -> when it ended; those of the overlap

    def count_ended_jobs(self) -> None:
        """Count every job that has ended and is not counted yet."""
        with self._lock, self._database.read() as session:
            since = max(self._start, self._newest - _OVERLAP_SECONDS)
            query = (
                select(JobRow)
                .where(JobRow.finished > since)
                .order_by(JobRow.finished)
                .limit(_MAX_JOBS)
            )
            rows = [row for row in session.scalars(query) if row.number not in self._counted]
            numbers = [_submission_number(row) for row in rows if _is_judged(row)]
            problems = problems_of_submissions(session, numbers)
            for row in rows:
                self._count(row, problems)
                self._counted[row.number] = row.finished or 0.0
                self._newest = max(self._newest, row.finished or 0.0)
            oldest = self._newest - _OVERLAP_SECONDS
            self._counted = {n: end for n, end in self._counted.items() if end > oldest}

    def _count(self, row: JobRow, problems: dict[int, str]) -> None:
        error = json.loads(row.error) if row.error else None
        result = json.loads(row.result) if row.result and row.kind == "judge" else None
        fault = job_fault(row.state, error, result)
        outcome = f"{fault}_error" if fault else row.state
        self._metrics.jobs_finished.add(row.kind, outcome)
        if row.started is not None:
            self._metrics.job_wait_seconds.observe(max(0.0, row.started - row.created), row.kind)
        if _is_judged(row) and row.started is not None and row.finished is not None:
            problem = problems.get(_submission_number(row), UNKNOWN)
            self._metrics.judge_seconds.observe(row.finished - row.started, problem)


def _is_judged(row: JobRow) -> bool:
    return row.kind == "judge" and row.state == "done"


def _submission_number(row: JobRow) -> int:
    return int(json.loads(row.payload)["submission"])
