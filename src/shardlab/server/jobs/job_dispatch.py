"""Who runs the next job: the part of the queue that differs between the databases.

`JobRow` is the record that people see, on both. On SQLite its rows are also the queue: the order is
computed from them, and a lease is a time in a row. On PostgreSQL PgQueuer hands the jobs out
(`pgqueuer_dispatch.py`).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from sqlalchemy import ColumnElement, and_, delete, func, or_, select
from sqlalchemy.orm import Session

from shardlab.server.database.engine import Database
from shardlab.server.database.tables import JobRow, QueueTurnRow
from shardlab.server.jobs.queue import JobKind

LEASE_SECONDS = 15.0


class JobDispatch(Protocol):
    """Orders the queued jobs and hands them out. Each method is a part of a transaction."""

    def has_claimable_job(self, session: Session, kinds: Collection[JobKind] | None) -> bool:
        """Return whether a claim can succeed, without waiting for another one."""

    def add(self, session: Session, row: JobRow) -> None:
        """Order a job that was just queued."""

    def expired_rows(self, session: Session) -> Sequence[JobRow]:
        """Return the jobs whose leases have ended, unless `next_row` hands them out itself."""

    def next_row(
        self, session: Session, worker: str, kinds: Collection[JobKind] | None
    ) -> JobRow | None:
        """Return the next job for a worker; one in state `running` was lost by another worker."""

    def position(self, session: Session, row: JobRow) -> int:
        """Return the position of a queued job; 1 is next."""

    def lock(self, session: Session, job_id: str) -> None:
        """Lock a job against being handed out, before its row is locked."""

    def renew(self, session: Session, row: JobRow) -> None:
        """Renew the lease of a running job."""

    def requeue(self, session: Session, row: JobRow) -> None:
        """Put a job that a worker had back into the queue."""

    def remove(self, session: Session, row: JobRow, *, was_queued: bool = False) -> None:
        """Forget a job: it has ended."""

    def announce(self, session: Session, job_id: str) -> None:
        """Tell other processes that a job has changed, once the transaction is committed."""

    def delete_old_rows(self, session: Session, seconds: float) -> None:
        """Delete what is noted about jobs that ended this long ago."""


class RowDispatch:
    """Hands jobs out by their rows alone: the queue of SQLite, whose writers exclude each other.

    **Fair order.** Each person has a number of turns. The person with the fewest turns is next, and
    a claim adds one. Someone who joins gets the smallest number of those who wait, so that a
    newcomer neither waits for everyone's backlog nor overtakes people who have waited longer.

    Let job k of a person (0, 1, ...) have the key (turns + k, arrival). Then the queue is served in
    the order of these keys, which is why a position can be told exactly.
    """

    def __init__(self, lease_seconds: float, clock: Callable[[], float] = time.time) -> None:
        self._lease_seconds = lease_seconds
        self._clock = clock

    def has_claimable_job(self, session: Session, kinds: Collection[JobKind] | None) -> bool:
        is_claimable = or_(JobRow.state == "queued", self._is_expired())
        if kinds is not None:
            is_claimable = is_claimable & JobRow.kind.in_(kinds)
        return session.scalar(select(JobRow.number).where(is_claimable).limit(1)) is not None

    def add(self, session: Session, row: JobRow) -> None:
        """Give a person who has no other queued job a number of turns to begin with."""
        others = (JobRow.state == "queued") & (JobRow.number != row.number)
        if _exists(session, others & (JobRow.person == row.person)):
            return
        waiting = select(JobRow.person).where(others)
        smallest = session.scalar(
            select(func.min(QueueTurnRow.turn)).where(QueueTurnRow.person.in_(waiting))
        )
        if smallest is None:  # nobody waits, so nobody can be overtaken
            smallest = 0
            session.execute(delete(QueueTurnRow))
        turn = session.get(QueueTurnRow, row.person)
        if turn is None:
            session.add(QueueTurnRow(person=row.person, turn=smallest))
        else:
            turn.turn = max(turn.turn, smallest)

    def expired_rows(self, session: Session) -> Sequence[JobRow]:
        return session.scalars(select(JobRow).where(self._is_expired())).all()

    def next_row(
        self, session: Session, worker: str, kinds: Collection[JobKind] | None
    ) -> JobRow | None:
        row = self._first_queued(session, kinds)
        if row is not None:
            turn = session.get(QueueTurnRow, row.person)
            if turn is not None:
                turn.turn += 1
            self.renew(session, row)
        return row

    def _first_queued(self, session: Session, kinds: Collection[JobKind] | None) -> JobRow | None:
        for number in _served_order(session):
            row = session.get(JobRow, number)
            if row is not None and (kinds is None or row.kind in kinds):
                return row
        return None

    def position(self, session: Session, row: JobRow) -> int:
        return _served_order(session).index(row.number) + 1

    def lock(self, session: Session, job_id: str) -> None:
        pass  # a transaction that writes excludes all others

    def renew(self, session: Session, row: JobRow) -> None:
        row.lease_until = self._clock() + self._lease_seconds

    def requeue(self, session: Session, row: JobRow) -> None:
        row.lease_until = None
        self.add(session, row)

    def remove(self, session: Session, row: JobRow, *, was_queued: bool = False) -> None:
        row.lease_until = None

    def announce(self, session: Session, job_id: str) -> None:
        pass  # all processes are on one machine, and the workers have a pipe to theirs

    def delete_old_rows(self, session: Session, seconds: float) -> None:
        pass  # there are no others than those of the jobs

    def _is_expired(self) -> ColumnElement[bool]:
        return and_(JobRow.state == "running", JobRow.lease_until < self._clock())


def _exists(session: Session, condition: ColumnElement[bool]) -> bool:
    return session.scalar(select(JobRow.number).where(condition).limit(1)) is not None


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


def open_dispatch(
    database: Database, lease_seconds: float, clock: Callable[[], float]
) -> JobDispatch:
    """Return the dispatch of a database."""
    if not database.is_postgresql:
        return RowDispatch(lease_seconds, clock)
    # Here: PgQueuer is installed where PostgreSQL is used.
    from shardlab.server.jobs.pgqueuer_dispatch import PgQueuerDispatch

    return PgQueuerDispatch(lease_seconds)
