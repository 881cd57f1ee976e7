"""The job queue on the server's database: the rows of jobs, which people see.

Which job is next, and which worker has lost its jobs, is decided by the dispatch of the database
(`job_dispatch.py`).
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, cast

from sqlalchemy import ColumnElement, and_, delete, func, select
from sqlalchemy.orm import Session

from shardlab.server.database.engine import Database
from shardlab.server.database.tables import JobRow, RecordingRow
from shardlab.server.jobs.job_dispatch import LEASE_SECONDS, open_dispatch
from shardlab.server.jobs.queue import (
    ClaimedJob,
    Job,
    JobError,
    JobKind,
    JobOutcome,
    JobState,
    JsonObject,
    NewRecording,
    QueueFull,
    QueueLimits,
    Reservation,
)
from shardlab.server.operations.request_id import add_request_id, take_request_id

MAX_LOST_ATTEMPTS = 3  # a job that ends its worker this often is not tried again
_RETENTION_SECONDS = 14 * 86400.0
_RESERVED = "reserved"  # the state of a row that is no job yet: nobody sees or claims it
_WORKER_LOST = JobError(
    kind="internal",
    message="The worker process ended several times while it ran this.",
    fix="try a smaller mesh or smaller arrays; the server's log says more.",
)


class SqlJobQueue:
    """Implements `JobQueue`; every method is one transaction."""

    def __init__(
        self,
        database: Database,
        limits: QueueLimits | None = None,
        *,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._limits = limits or QueueLimits()
        self._dispatch = open_dispatch(database, lease_seconds, clock)
        self._clock = clock

    # --------------------------------------------------------------------- the person's side

    def enqueue(
        self,
        person: int,
        kind: JobKind,
        payload: JsonObject,
        *,
        key: str | None = None,
        reservation: Reservation | None = None,
    ) -> Job:
        with self._database.write() as session:
            existing = self._find_active(session, key)
            if reservation is None and existing is None:
                self._check_limits(session, person)
            elif reservation is not None:
                _delete_reservation(session, reservation)
            if existing is not None:
                return _to_job(existing, self._position(session, existing))
            row = self._new_row(person, kind, payload, key=key, state="queued")
            session.add(row)
            session.flush()
            self._dispatch.add(session, row)
            self._dispatch.announce(session, row.id)
            return _to_job(row, self._position(session, row))

    def reserve(self, person: int, kind: JobKind, payload: JsonObject) -> Reservation:
        with self._database.write() as session:
            self._check_limits(session, person)
            row = self._new_row(person, kind, payload, key=None, state=_RESERVED)
            session.add(row)
            return Reservation(id=row.id, person=person, kind=kind, payload=payload)

    def list_reservations(self) -> list[Reservation]:
        reserved = select(JobRow).where(JobRow.state == _RESERVED).order_by(JobRow.number)
        with self._database.read() as session:
            return [
                Reservation(
                    id=row.id,
                    person=row.person,
                    kind=cast("JobKind", row.kind),
                    payload=take_request_id(json.loads(row.payload))[0],
                )
                for row in session.scalars(reserved)
            ]

    def drop_reservation(self, reservation: Reservation) -> None:
        with self._database.write() as session:
            _delete_reservation(session, reservation)

    def _new_row(
        self, person: int, kind: JobKind, payload: JsonObject, *, key: str | None, state: str
    ) -> JobRow:
        return JobRow(
            id=secrets.token_urlsafe(16),
            person=person,
            kind=kind,
            key=key,
            payload=json.dumps(add_request_id(payload)),
            state=state,
            version=1,
            created=self._clock(),
            attempt=0,
            n_lost=0,
            worker="",
            is_cancel_requested=False,
        )

    def find(self, job_id: str) -> Job | None:
        with self._database.read() as session:
            row = session.scalar(select(JobRow).where(JobRow.id == job_id))
            return None if row is None else _to_job(row, self._position(session, row))

    def find_by_key(self, key: str) -> Job | None:
        newest = select(JobRow).where(JobRow.key == key).order_by(JobRow.number.desc()).limit(1)
        with self._database.read() as session:
            row = session.scalar(newest)
            return None if row is None else _to_job(row, self._position(session, row))

    def cancel(self, job_id: str) -> Job | None:
        with self._database.write() as session:
            self._dispatch.lock(session, job_id)
            row = session.scalar(select(JobRow).where(JobRow.id == job_id).with_for_update())
            if row is None:
                return None
            self._dispatch.announce(session, row.id)
            if row.state == "queued":
                row.state, row.finished = "cancelled", self._clock()
                row.version += 1
                self._dispatch.remove(session, row, was_queued=True)
            elif row.state == "running" and not row.is_cancel_requested:
                row.is_cancel_requested = True
                row.version += 1
            return _to_job(row, None)

    def queue_length(self) -> int:
        """Return how many jobs wait."""
        with self._database.read() as session:
            return _count(session, JobRow.state == "queued")

    # --------------------------------------------------------------------- the worker's side

    def claim(self, worker: str, kinds: Collection[JobKind] | None = None) -> ClaimedJob | None:
        with self._database.read() as session:
            if not self._dispatch.has_claimable_job(session, kinds):
                return None
        with self._database.write() as session:
            for row in self._dispatch.expired_rows(session):
                self._return_to_queue(session, row, is_lost=True)
            next_row = self._next_row(session, worker, kinds)
            return None if next_row is None else self._start(session, next_row, worker)

    def _start(self, session: Session, row: JobRow, worker: str) -> ClaimedJob:
        row.state, row.worker = "running", worker
        row.started = self._clock()
        row.attempt += 1
        row.version += 1
        row.progress = None
        self._dispatch.announce(session, row.id)
        payload, request_id = take_request_id(json.loads(row.payload))
        return ClaimedJob(
            id=row.id,
            person=row.person,
            kind=cast("JobKind", row.kind),
            payload=payload,
            attempt=row.attempt,
            request_id=request_id,
        )

    def _next_row(
        self, session: Session, worker: str, kinds: Collection[JobKind] | None
    ) -> JobRow | None:
        while (row := self._dispatch.next_row(session, worker, kinds)) is not None:
            if row.state == "queued" or self._can_try_again(session, row, is_lost=True):
                return row
        return None

    def renew(self, claims: Iterable[ClaimedJob]) -> list[ClaimedJob]:
        must_end = []
        for claim in claims:
            with self._database.write(is_exclusive=False) as session:
                row = self._lock_claimed_row(session, claim)
                if row is None or row.is_cancel_requested:
                    must_end.append(claim)
                if row is not None:
                    self._dispatch.renew(session, row)
        return must_end

    def report_progress(self, claim: ClaimedJob, progress: JsonObject) -> bool:
        with self._database.write(is_exclusive=False) as session:
            row = _claimed_row(session, claim)
            if row is None:
                return False
            row.progress = json.dumps(progress)
            row.version += 1
            self._dispatch.announce(session, row.id)
            return True

    def finish(self, claim: ClaimedJob, outcome: JobOutcome) -> bool:
        with self._database.write(is_exclusive=False) as session:
            row = self._lock_claimed_row(session, claim)
            if row is None:
                return False
            row.state, row.finished = outcome.state, self._clock()
            row.version += 1
            self._dispatch.remove(session, row)
            self._dispatch.announce(session, row.id)
            row.result = None if outcome.result is None else json.dumps(outcome.result)
            row.error = None if outcome.error is None else json.dumps(outcome.error.to_json())
            if outcome.recording is not None:
                add_recording(
                    session,
                    claim.id,
                    claim.person,
                    outcome.recording,
                    created=row.finished,
                    limits=self._limits,
                )
            return True

    def release(self, worker: str, *, has_crashed: bool) -> int:
        with self._database.write() as session:
            rows = session.scalars(
                select(JobRow).where(JobRow.state == "running", JobRow.worker == worker)
            ).all()
            for row in rows:
                self._dispatch.lock(session, row.id)
                session.refresh(row, with_for_update=True)
                if row.state != "running" or row.worker != worker:
                    continue  # it has ended just now
                self._return_to_queue(session, row, is_lost=has_crashed)
            return len(rows)

    def give_back(self, claim: ClaimedJob, *, is_lost: bool) -> None:
        """Return one job to the queue: its worker cannot go on with it."""
        with self._database.write() as session:
            row = self._lock_claimed_row(session, claim)
            if row is not None:
                self._return_to_queue(session, row, is_lost=is_lost)

    def delete_old_rows(self) -> None:
        """Delete jobs that ended long ago."""
        with self._database.write(is_exclusive=False) as session:
            oldest = self._clock() - _RETENTION_SECONDS
            session.execute(delete(JobRow).where(JobRow.finished < oldest))
            self._dispatch.delete_old_rows(session, _RETENTION_SECONDS)

    # ------------------------------------------------------------------------------- details

    def _find_active(self, session: Session, key: str | None) -> JobRow | None:
        if key is None:
            return None
        active = JobRow.state.in_(("queued", "running", "done"))
        return session.scalar(select(JobRow).where(JobRow.key == key, active))

    def _check_limits(self, session: Session, person: int) -> None:
        is_active = JobRow.state.in_((_RESERVED, "queued", "running"))
        if _count(session, is_active & (JobRow.person == person)) >= self._limits.per_person:
            raise QueueFull(
                f"You already have {self._limits.per_person} jobs that wait or run. "
                "Wait for one of them, or cancel one.",
                is_of_person=True,
            )
        if _count(session, is_active) >= self._limits.total:
            raise QueueFull(
                "The server has as many jobs as it can take. Try again in a minute.",
                is_of_person=False,
            )

    def _return_to_queue(self, session: Session, row: JobRow, *, is_lost: bool) -> None:
        """Let another worker have a job; end it if it was cancelled, or ends every worker."""
        if self._can_try_again(session, row, is_lost=is_lost):
            row.state, row.started, row.worker = "queued", None, ""
            row.version += 1
            session.flush()
            self._dispatch.requeue(session, row)

    def _can_try_again(self, session: Session, row: JobRow, *, is_lost: bool) -> bool:
        """Return whether a job that a worker had is run again; otherwise it has ended now."""
        row.n_lost += is_lost
        row.progress = None
        self._dispatch.announce(session, row.id)
        if row.is_cancel_requested:
            row.state = "cancelled"
        elif row.n_lost >= MAX_LOST_ATTEMPTS:
            row.state, row.error = "failed", json.dumps(_WORKER_LOST.to_json())
        else:
            return True
        row.finished, row.worker = self._clock(), ""
        row.version += 1
        self._dispatch.remove(session, row)
        return False

    def _lock_claimed_row(self, session: Session, claim: ClaimedJob) -> JobRow | None:
        """Return the row of a claim, locked in the same order as a claim locks."""
        self._dispatch.lock(session, claim.id)
        return _claimed_row(session, claim)

    def _position(self, session: Session, row: JobRow) -> int | None:
        return self._dispatch.position(session, row) if row.state == "queued" else None


def _claimed_row(session: Session, claim: ClaimedJob) -> JobRow | None:
    """Return the row of a claim; None if the job has ended, or a later attempt runs it."""
    return session.scalar(
        select(JobRow)
        .where(JobRow.id == claim.id, JobRow.attempt == claim.attempt, JobRow.state == "running")
        .with_for_update()
    )


def _delete_reservation(session: Session, reservation: Reservation) -> None:
    is_this = and_(JobRow.id == reservation.id, JobRow.state == _RESERVED)
    session.execute(delete(JobRow).where(is_this))


def _count(session: Session, condition: ColumnElement[bool]) -> int:
    return session.scalar(select(func.count()).select_from(JobRow).where(condition)) or 0


def add_recording(
    session: Session,
    recording_id: str,
    person: int,
    recording: NewRecording,
    *,
    created: float,
    limits: QueueLimits,
) -> None:
    """Store a recording in the transaction of `session`; the person's oldest ones make room."""
    session.add(
        RecordingRow(
            id=recording_id,
            person=person,
            title=recording.title[:200],
            created=created,
            source=recording.source,
            body=recording.body,
        )
    )
    session.flush()
    _delete_surplus_recordings(session, person, newest=recording_id, limits=limits)


def _delete_surplus_recordings(
    session: Session, person: int, *, newest: str, limits: QueueLimits
) -> None:
    """Delete the oldest recordings of a person beyond the limits of number and bytes."""
    n_bytes = func.length(RecordingRow.body) + func.length(RecordingRow.source)
    rows = session.execute(
        select(RecordingRow.id, n_bytes)
        .where(RecordingRow.person == person, RecordingRow.id != newest)
        .order_by(RecordingRow.created.desc())
    ).all()
    total = session.scalar(select(n_bytes).where(RecordingRow.id == newest)) or 0
    surplus = []
    for count, (recording_id, size) in enumerate(rows, start=2):
        total += size
        if count > limits.recordings or total > limits.recording_bytes:
            surplus.append(recording_id)
    session.execute(delete(RecordingRow).where(RecordingRow.id.in_(surplus)))


def _to_job(row: JobRow, position: int | None) -> Job:
    def parse(text: str | None) -> Any:
        return None if text is None else json.loads(text)

    error = parse(row.error)
    return Job(
        id=row.id,
        person=row.person,
        kind=cast("JobKind", row.kind),
        state=cast("JobState", row.state),
        version=row.version,
        created=row.created,
        started=row.started,
        finished=row.finished,
        position=position,
        progress=parse(row.progress),
        result=parse(row.result),
        error=None if error is None else JobError.from_json(error),
        is_cancel_requested=row.is_cancel_requested,
    )
