"""The workers of all machines: each registers itself, and is dead when its heartbeat is old."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from typing import Literal, cast

from sqlalchemy import delete, select, update

from shardlab.server.database.engine import Database
from shardlab.server.database.tables import ReleaseRow, WorkerRow
from shardlab.server.release import Release

WorkerState = Literal["starting", "ready", "draining", "ended"]
HEARTBEAT_SECONDS = 3.0
WORKER_DEAD_SECONDS = 20.0  # longer than a lease: its jobs are back in the queue by then
_FORGET_SECONDS = 86400.0  # a worker that ended or died is listed for a day
_RELEASE_ID = 1


@dataclass(frozen=True, kw_only=True)
class RegisteredWorker:
    """A worker as it has registered."""

    name: str
    host: str
    pid: int
    release: Release
    sandbox_level: str  # empty while it starts
    n_slots: int
    can_judge: bool
    state: WorkerState
    started: float
    heartbeat: float
    is_alive: bool  # it has not ended, and its heartbeat is young

    @property
    def is_ready(self) -> bool:
        return self.is_alive and self.state == "ready"


def new_worker_name() -> str:
    """Return a name that no other worker has or had: host, process, and random digits.

    >>> len(new_worker_name()) <= 64
    True
    """
    return f"{socket.gethostname()[:32]}-{os.getpid()}-{secrets.token_hex(6)}"


class WorkerRegistry:
    """Registers workers, and says what the web processes expect of them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def register(self, name: str, release: Release, *, n_slots: int) -> None:
        """Add a worker that starts."""
        now = self._database.now()
        with self._database.write(is_exclusive=False) as session:
            session.add(
                WorkerRow(
                    name=name,
                    host=socket.gethostname()[:255],
                    pid=os.getpid(),
                    shardlab_version=release.shardlab_version[:40],
                    jax_version=release.jax_version[:40],
                    judge_version=release.judge_version[:40],
                    catalogue_digest=release.catalogue_digest,
                    sandbox_level="",
                    n_slots=n_slots,
                    can_judge=False,
                    state="starting",
                    started=now,
                    heartbeat=now,
                )
            )
            old = WorkerRow.heartbeat < now - _FORGET_SECONDS
            session.execute(delete(WorkerRow).where(old))

    def beat(self, name: str, *, state: WorkerState, level: str, can_judge: bool) -> None:
        """Store that a worker is alive, and what it does."""
        row = update(WorkerRow).where(WorkerRow.name == name)
        values = {
            "heartbeat": self._database.now(),
            "state": state,
            "sandbox_level": level,
            "can_judge": can_judge,
        }
        with self._database.write(is_exclusive=False) as session:
            session.execute(row.values(**values))

    def list_workers(self) -> tuple[RegisteredWorker, ...]:
        """Return all workers of the last day, the newest first."""
        now = self._database.now()
        with self._database.read() as session:
            rows = session.scalars(select(WorkerRow).order_by(WorkerRow.id.desc())).all()
            return tuple(_to_worker(row, now) for row in rows)

    def expect(self, release: Release) -> None:
        """Store what the web processes run; the newest start decides."""
        values = {
            "shardlab_version": release.shardlab_version,
            "jax_version": release.jax_version,
            "judge_version": release.judge_version,
            "catalogue_digest": release.catalogue_digest,
            "started": self._database.now(),
        }
        row = self._database.insert(ReleaseRow).values(id=_RELEASE_ID, **values)
        with self._database.write(is_exclusive=False) as session:
            session.execute(row.on_conflict_do_update(index_elements=[ReleaseRow.id], set_=values))

    def expected_release(self) -> Release | None:
        """Return what the web processes run; None before the first has started."""
        with self._database.read() as session:
            row = session.get(ReleaseRow, _RELEASE_ID)
            return None if row is None else _to_release(row)


def _to_release(row: WorkerRow | ReleaseRow) -> Release:
    return Release(
        shardlab_version=row.shardlab_version,
        jax_version=row.jax_version,
        judge_version=row.judge_version,
        catalogue_digest=row.catalogue_digest,
    )


def _to_worker(row: WorkerRow, now: float) -> RegisteredWorker:
    return RegisteredWorker(
        name=row.name,
        host=row.host,
        pid=row.pid,
        release=_to_release(row),
        sandbox_level=row.sandbox_level,
        n_slots=row.n_slots,
        can_judge=row.can_judge,
        state=cast("WorkerState", row.state),
        started=row.started,
        heartbeat=row.heartbeat,
        is_alive=row.state != "ended" and row.heartbeat > now - WORKER_DEAD_SECONDS,
    )
