"""Hands jobs out with PgQueuer, on PostgreSQL.

PgQueuer's own statements run in our transactions, on the connection of the session: so a
submission, its job and the row that dispatches it are committed together or not at all. PgQueuer
locks the next row, keeps a heartbeat on it, and hands it to another worker once the heartbeat is
old, all by the clock of the database.

**Fair order.** PgQueuer serves the highest priority first, and equal ones in the order of arrival.
Each job has a turn, and its priority is minus the turn. The first job of a person takes the
smallest turn of those that wait, or the person's own next turn if that is later; each further one
takes the turn after it. So the k-th job of a person comes after everybody's (k-1)-th, and a
newcomer neither waits for a backlog nor overtakes people who have waited longer.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, cast, get_args

import psycopg
from pgqueuer.domain.types import QueueEntrypoint, QueueManagerId
from psycopg.rows import dict_row
from sqlalchemy import delete, select, text
from sqlalchemy.orm import Session

from shardlab.server.database.tables import JobRow, QueueTurnRow
from shardlab.server.jobs.job_changes import JOB_CHANNEL
from shardlab.server.jobs.pgqueuer_tables import pgqueuer_statements
from shardlab.server.jobs.queue import JobKind

_STATEMENTS = pgqueuer_statements()
_WORKERS = uuid.UUID("5f0e5ad2-6f4d-4f6e-9a43-3c9ab1a1f1a7")  # the namespace of workers' names
_STATUS_OF_STATE = {"done": "successful", "failed": "exception", "cancelled": "canceled"}

_HAS_CLAIMABLE = text(
    "SELECT 1 FROM pgqueuer WHERE entrypoint = ANY(:kinds) AND (status = 'queued'"
    " OR (status = 'picked' AND heartbeat < now() - :lease)) LIMIT 1"
)
_LAST_OWN = text(
    "SELECT -min(priority) FROM pgqueuer JOIN job ON job.dispatch_id = pgqueuer.id"
    " WHERE status = 'queued' AND person = :person"
)
_FIRST_WAITING = text("SELECT -max(priority) FROM pgqueuer WHERE status = 'queued'")
_POSITION = text(
    "SELECT count(*) FROM pgqueuer JOIN pgqueuer AS mine ON mine.id = :id"
    " WHERE pgqueuer.status = 'queued' AND (pgqueuer.priority > mine.priority"
    " OR (pgqueuer.priority = mine.priority AND pgqueuer.id <= mine.id))"
)
_LOCK = text(
    "SELECT 1 FROM pgqueuer WHERE id = (SELECT dispatch_id FROM job WHERE id = :id) FOR UPDATE"
)
# Who cancels a job loses no turn by it.
_ADVANCE_LATER = text(
    "UPDATE pgqueuer SET priority = priority + 1 FROM job"
    " WHERE job.dispatch_id = pgqueuer.id AND status = 'queued'"
    " AND person = :person AND number > :number"
)
_NOTIFY = text("SELECT pg_notify(:channel, :payload)")
_DELETE_LOG = text("DELETE FROM pgqueuer_log WHERE created < now() - :age")


class PgQueuerDispatch:
    """Implements `JobDispatch` with PgQueuer's table."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease = timedelta(seconds=lease_seconds)

    def has_claimable_job(self, session: Session, kinds: Collection[JobKind] | None) -> bool:
        values = {"kinds": _kind_list(kinds), "lease": self._lease}
        return session.execute(_HAS_CLAIMABLE, values).first() is not None

    def add(self, session: Session, row: JobRow) -> None:
        turn = self._next_turn(session, row.person)
        rows = _run(
            session,
            _STATEMENTS.build_enqueue_query(),
            [-turn],
            [row.kind],
            [row.id.encode()],
            [timedelta(0)],
            [None],
            ["null"],
        )
        row.dispatch_id = cast("int", rows[0]["id"])

    def _next_turn(self, session: Session, person: int) -> int:
        last_own = session.scalar(_LAST_OWN, {"person": person})
        own = session.get(QueueTurnRow, person)
        if last_own is not None:
            turn = int(last_own) + 1
        else:
            first_waiting = session.scalar(_FIRST_WAITING)
            if first_waiting is None:  # nobody waits, so nobody can be overtaken
                session.execute(delete(QueueTurnRow))
                own, turn = None, 0
            else:
                turn = max(int(first_waiting), own.turn if own is not None else 0)
        if own is None:
            session.add(QueueTurnRow(person=person, turn=turn + 1))
        else:
            own.turn = turn + 1
        session.flush()
        return turn

    def expired_rows(self, session: Session) -> Sequence[JobRow]:
        return ()  # PgQueuer hands them out in their order, among the others

    def next_row(
        self, session: Session, worker: str, kinds: Collection[JobKind] | None
    ) -> JobRow | None:
        entrypoints = [QueueEntrypoint(kind) for kind in _kind_list(kinds)]
        while True:
            query = _STATEMENTS.build_dequeue_query(
                batch_size=1,
                entrypoints=entrypoints,
                concurrency_limits=[0] * len(entrypoints),
                queue_manager_id=QueueManagerId(uuid.uuid5(_WORKERS, worker)),
                global_concurrency_limit=None,
                heartbeat_timeout=self._lease,
            )
            picked = _run(session, query.sql, *query.args)
            if not picked:
                return None
            dispatch_id = cast("int", picked[0]["id"])
            is_it = JobRow.dispatch_id == dispatch_id
            row = session.scalar(select(JobRow).where(is_it).with_for_update())
            if row is not None and row.state in ("queued", "running"):
                return row
            self._log(session, dispatch_id, "deleted")  # its job was deleted by hand

    def position(self, session: Session, row: JobRow) -> int:
        return session.scalar(_POSITION, {"id": row.dispatch_id}) or 1

    def lock(self, session: Session, job_id: str) -> None:
        session.execute(_LOCK, {"id": job_id})

    def renew(self, session: Session, row: JobRow) -> None:
        _run(session, _STATEMENTS.build_update_heartbeat_query(), [row.dispatch_id])

    def requeue(self, session: Session, row: JobRow) -> None:
        query = _STATEMENTS.build_retry_job_query()  # in its old place
        _run(session, query, row.dispatch_id, timedelta(0), None)

    def remove(self, session: Session, row: JobRow, *, was_queued: bool = False) -> None:
        if was_queued:
            session.flush()
            values = {"person": row.person, "number": row.number}
            session.execute(_ADVANCE_LATER, values)
            turn = session.get(QueueTurnRow, row.person)
            if turn is not None:
                turn.turn -= 1
        if row.dispatch_id is not None:
            self._log(session, row.dispatch_id, _STATUS_OF_STATE[row.state])

    def _log(self, session: Session, dispatch_id: int, status: str) -> None:
        """Move a row from PgQueuer's queue to its log."""
        _run(session, _STATEMENTS.build_log_job_query(), [dispatch_id], [status], [None])

    def announce(self, session: Session, job_id: str) -> None:
        session.execute(_NOTIFY, {"channel": JOB_CHANNEL, "payload": job_id})

    def delete_old_rows(self, session: Session, seconds: float) -> None:
        session.execute(_DELETE_LOG, {"age": timedelta(seconds=seconds)})


def _kind_list(kinds: Collection[JobKind] | None) -> list[str]:
    return sorted(get_args(JobKind) if kinds is None else kinds)


def _run(session: Session, query: str, *values: Any) -> list[dict[str, Any]]:
    """Run a statement of PgQueuer's, which has placeholders of PostgreSQL's own form."""
    connection = cast("psycopg.Connection[Any]", session.connection().connection.driver_connection)
    with psycopg.RawCursor(connection, row_factory=dict_row) as cursor:
        # The text is PgQueuer's, and its names are those of `pgqueuer_tables.py`.
        cursor.execute(cast("Any", query), values or None)
        return cursor.fetchall() if cursor.description is not None else []
