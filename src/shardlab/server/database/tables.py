"""The base of all tables, and the tables of jobs and recordings.

Times are seconds since 1970 in UTC, as floats: they compare alike in SQLite and PostgreSQL, and no
time zone can be lost on the way.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Index, LargeBinary, MetaData, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# Every constraint has a name, so that a later migration can change it on any database.
NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """The base of all tables; a migration creates each of them."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)


class JobRow(Base):
    """One piece of work for a worker process.

    `person` is 0 in local mode, so it is no foreign key. `attempt` counts how often the job was
    claimed; only the newest attempt may write to the row.
    """

    __tablename__ = "job"
    __table_args__ = (
        Index("ix_job_state_person", "state", "person"),
        Index("ix_job_finished", "finished"),
        Index("ix_job_key", "key"),
        Index("ix_job_dispatch_id", "dispatch_id"),
        {"sqlite_autoincrement": True},  # a number is never used twice
    )

    number: Mapped[int] = mapped_column(primary_key=True)  # the order of arrival
    id: Mapped[str] = mapped_column(String(32), unique=True)  # in URLs: cannot be guessed
    person: Mapped[int]
    kind: Mapped[str] = mapped_column(String(32))
    key: Mapped[str | None] = mapped_column(String(100))  # of at most one active or done job
    payload: Mapped[str] = mapped_column(Text)  # JSON
    state: Mapped[str] = mapped_column(String(16))
    version: Mapped[int] = mapped_column(default=0)  # increases with every change of the row
    created: Mapped[float]
    started: Mapped[float | None]
    finished: Mapped[float | None]
    attempt: Mapped[int] = mapped_column(default=0)
    n_lost: Mapped[int] = mapped_column(default=0)  # attempts whose worker ended without a result
    lease_until: Mapped[float | None]
    worker: Mapped[str] = mapped_column(String(64), default="")
    is_cancel_requested: Mapped[bool] = mapped_column(default=False)
    progress: Mapped[str | None] = mapped_column(Text)  # JSON
    result: Mapped[str | None] = mapped_column(Text)  # JSON
    error: Mapped[str | None] = mapped_column(Text)  # JSON
    # On PostgreSQL, the row of PgQueuer's table that hands the job to a worker.
    dispatch_id: Mapped[int | None] = mapped_column(BigInteger)


class QueueTurnRow(Base):
    """How many turns a person has had; the person with the fewest is next."""

    __tablename__ = "queue_turn"

    person: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    turn: Mapped[int]


class RecordingRow(Base):
    """A recording of a program. One that a job made has the id of the job."""

    __tablename__ = "recording"
    __table_args__ = (Index("ix_recording_person_created", "person", "created"),)

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    person: Mapped[int]
    title: Mapped[str] = mapped_column(String(200))
    created: Mapped[float]
    source: Mapped[str] = mapped_column(Text)  # the program's text; empty for an uploaded file
    body: Mapped[bytes] = mapped_column(LargeBinary)  # JSON, compressed with gzip


class WorkerRow(Base):
    """A worker process on any machine, as it has registered.

    Its state is starting, ready, draining or ended. One that was killed stays `ready`: it is dead
    once its heartbeat is older than `WORKER_DEAD_SECONDS` of `jobs/worker_registry.py`.
    """

    __tablename__ = "worker"
    __table_args__ = (Index("ix_worker_heartbeat", "heartbeat"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)  # also in `JobRow.worker`
    host: Mapped[str] = mapped_column(String(255))
    pid: Mapped[int]
    shardlab_version: Mapped[str] = mapped_column(String(40))
    jax_version: Mapped[str] = mapped_column(String(40))
    judge_version: Mapped[str] = mapped_column(String(40))
    catalogue_digest: Mapped[str] = mapped_column(String(64))  # of the catalogue it judges with
    sandbox_level: Mapped[str] = mapped_column(String(1), default="")  # empty while it starts
    n_slots: Mapped[int]  # jobs at the same time
    can_judge: Mapped[bool] = mapped_column(default=False)
    state: Mapped[str] = mapped_column(String(10))
    started: Mapped[float]
    heartbeat: Mapped[float]  # by the clock of the database where it has one


class ReleaseRow(Base):
    """What the web processes run, and expect of their workers: one row, of the newest start."""

    __tablename__ = "server_release"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    shardlab_version: Mapped[str] = mapped_column(String(40))
    jax_version: Mapped[str] = mapped_column(String(40))
    judge_version: Mapped[str] = mapped_column(String(40))
    catalogue_digest: Mapped[str] = mapped_column(String(64))
    started: Mapped[float]
