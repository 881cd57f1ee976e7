"""The job queue on the server's database.

**Fair order.** Each person has a number of turns. The person with the fewest turns is next, and a
claim adds one. Someone who joins gets the smallest number of those who wait, so that a newcomer
neither waits for everyone's backlog nor overtakes people who have waited longer.

Let job k of a person (0, 1, ...) have the key (turns + k, arrival). Then the queue is served in the
order of these keys, which is why a position can be told exactly.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Any, cast

from sqlalchemy import ColumnElement, and_, delete, func, or_, select
from sqlalchemy.orm import Session

from shardlab.server.database.engine import Database
from shardlab.server.database.tables import JobRow, QueueTurnRow, RecordingRow
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

LEASE_SECONDS = 15.0
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
        self._lease_seconds = lease_seconds
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
            self._join_queue(session, person)
            row = self._new_row(person, kind, payload, key=key, state="queued")
            session.add(row)
            session.flush()
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
            row = session.scalar(select(JobRow).where(JobRow.id == job_id))
            if row is None:
                return None
            if row.state == "queued":
                row.state, row.finished = "cancelled", self._clock()
                row.version += 1
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
        if not self._has_claimable_job(kinds):
            return None
        with self._database.write() as session:
            self._requeue_expired(session)
            row = self._next_row(session, kinds)
            if row is None:
                return None
            turn = session.get(QueueTurnRow, row.person)
            if turn is not None:
                turn.turn += 1
            now = self._clock()
            row.state, row.worker = "running", worker
            row.started = now
            row.attempt += 1
            row.version += 1
            row.lease_until = now + self._lease_seconds
            row.progress = None
            payload, request_id = take_request_id(json.loads(row.payload))
            return ClaimedJob(
                id=row.id,
                person=row.person,
                kind=cast("JobKind", row.kind),
                payload=payload,
                attempt=row.attempt,
                request_id=request_id,
            )

    def renew(self, claims: Iterable[ClaimedJob]) -> list[ClaimedJob]:
        must_end = []
        with self._database.write() as session:
            for claim in claims:
                row = _claimed_row(session, claim)
                if row is None or row.is_cancel_requested:
                    must_end.append(claim)
                if row is not None:
                    row.lease_until = self._clock() + self._lease_seconds
        return must_end

    def report_progress(self, claim: ClaimedJob, progress: JsonObject) -> bool:
        with self._database.write() as session:
            row = _claimed_row(session, claim)
            if row is None:
                return False
            row.progress = json.dumps(progress)
            row.version += 1
            return True

    def finish(self, claim: ClaimedJob, outcome: JobOutcome) -> bool:
        with self._database.write() as session:
            row = _claimed_row(session, claim)
            if row is None:
                return False
            row.state, row.finished = outcome.state, self._clock()
            row.version += 1
            row.lease_until = None
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
                self._return_to_queue(session, row, is_lost=has_crashed)
            return len(rows)

    def delete_old_rows(self) -> None:
        """Delete jobs that ended long ago."""
        with self._database.write() as session:
            oldest = self._clock() - _RETENTION_SECONDS
            session.execute(delete(JobRow).where(JobRow.finished < oldest))

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

    def _join_queue(self, session: Session, person: int) -> None:
        """Give a person who has no queued job a number of turns to begin with."""
        if _count(session, (JobRow.state == "queued") & (JobRow.person == person)):
            return
        waiting = select(JobRow.person).where(JobRow.state == "queued")
        smallest = session.scalar(
            select(func.min(QueueTurnRow.turn)).where(QueueTurnRow.person.in_(waiting))
        )
        if smallest is None:  # nobody waits, so nobody can be overtaken
            smallest = 0
            session.execute(delete(QueueTurnRow))
        row = session.get(QueueTurnRow, person)
        if row is None:
            session.add(QueueTurnRow(person=person, turn=smallest))
        else:
            row.turn = max(row.turn, smallest)

    def _has_claimable_job(self, kinds: Collection[JobKind] | None) -> bool:
        """Return whether a claim can succeed, without the lock that a claim takes."""
        is_claimable = or_(JobRow.state == "queued", self._is_expired())
        if kinds is not None:
            is_claimable = is_claimable & JobRow.kind.in_(kinds)
        with self._database.read() as session:
            return session.scalar(select(JobRow.number).where(is_claimable).limit(1)) is not None

    def _is_expired(self) -> ColumnElement[bool]:
        return and_(JobRow.state == "running", JobRow.lease_until < self._clock())

    def _requeue_expired(self, session: Session) -> None:
        for row in session.scalars(select(JobRow).where(self._is_expired())).all():
            self._return_to_queue(session, row, is_lost=True)

    def _return_to_queue(self, session: Session, row: JobRow, *, is_lost: bool) -> None:
        """Let another worker have a job; end it if it was cancelled, or ends every worker."""
        row.version += 1
        row.lease_until, row.worker, row.progress = None, "", None
        row.n_lost += is_lost
        if row.is_cancel_requested:
            row.state, row.finished = "cancelled", self._clock()
        elif row.n_lost >= MAX_LOST_ATTEMPTS:
            row.state, row.finished = "failed", self._clock()
            row.error = json.dumps(_WORKER_LOST.to_json())
        else:
            self._join_queue(session, row.person)
            row.state, row.started = "queued", None
            session.flush()

    def _next_row(self, session: Session, kinds: Collection[JobKind] | None) -> JobRow | None:
        for number in _served_order(session):
            row = session.get(JobRow, number)
            if row is not None and (kinds is None or row.kind in kinds):
                return row
        return None

    def _position(self, session: Session, row: JobRow) -> int | None:
        if row.state != "queued":
            return None
        return _served_order(session).index(row.number) + 1


def _served_order(session: Session) -> list[int]:
    """Return the numbers of the queued jobs in the order in which they will be claimed."""
    turns = {row.person: row.turn for row in session.scalars(select(QueueTurnRow))}
    queued = session.execute(
        select(JobRow.number, JobRow.person).where(JobRow.state == "queued").order_by(JobRow.number)
    )
    n_before: dict[int, int] = defaultdict(int)  # jobs of the same person
    keys = []
    for number, person in queued:
        keys.append((turns.get(person, 0) + n_before[person], number))
        n_before[person] += 1
    return [number for _, number in sorted(keys)]


def _claimed_row(session: Session, claim: ClaimedJob) -> JobRow | None:
    """Return the row of a claim; None if the job has ended, or a later attempt runs it."""
    return session.scalar(
        select(JobRow).where(
            JobRow.id == claim.id, JobRow.attempt == claim.attempt, JobRow.state == "running"
        )
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
