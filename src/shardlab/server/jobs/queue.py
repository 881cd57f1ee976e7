"""The queue as its users see it: records of jobs, and the protocol that an implementation has.

`SqlJobQueue` implements it on the server's database. Another implementation can hand jobs to
workers on other machines; nothing else knows where they run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

JobKind = Literal["record", "edits", "judge", "replay", "advice", "debug_case", "audit_catalogue"]
JobState = Literal["queued", "running", "done", "failed", "cancelled"]
# Run in the lab's sandbox alone; every other kind needs the judge's.
LAB_KINDS: frozenset[JobKind] = frozenset({"record", "edits", "advice", "debug_case"})
_ALL_KINDS: frozenset[JobKind] = frozenset(get_args(JobKind))
END_STATES: frozenset[JobState] = frozenset({"done", "failed", "cancelled"})
JsonObject = dict[str, Any]


def slot_kinds(slot: int, *, can_judge: bool) -> frozenset[JobKind]:
    """Return what one of a worker's slots runs, counted from 0.

    The first runs no audit, which can take many minutes: people go on to be served.

    >>> "audit_catalogue" in slot_kinds(0, can_judge=True), "judge" in slot_kinds(0, can_judge=True)
    (False, True)
    """
    if not can_judge:
        return LAB_KINDS
    return _ALL_KINDS if slot else _ALL_KINDS - {"audit_catalogue"}


@dataclass(frozen=True, kw_only=True)
class JobError:
    """Why a job failed, for the person who started it; never a traceback of ours."""

    kind: str  # syntax, exception, time, memory, output, crash, rejected, internal ...
    message: str
    line: int | None = None  # of the person's program
    fix: str = ""

    def to_json(self) -> JsonObject:
        return vars(self).copy()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobError:
        return cls(**data)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job as its person sees it."""

    id: str
    person: int
    kind: JobKind
    state: JobState
    version: int  # increases with every change
    created: float
    started: float | None = None
    finished: float | None = None
    position: int | None = None  # in the queue, 1 is next; None if it is not queued
    progress: JsonObject | None = None
    result: JsonObject | None = None
    error: JobError | None = None
    is_cancel_requested: bool = False

    @property
    def has_ended(self) -> bool:
        return self.state in END_STATES


@dataclass(frozen=True, kw_only=True)
class ClaimedJob:
    """A job that a worker has claimed: it may write results until its lease ends."""

    id: str
    person: int
    kind: JobKind
    payload: JsonObject
    attempt: int
    request_id: str = ""  # of the request that stored it


@dataclass(frozen=True, kw_only=True)
class NewRecording:
    """A recording to store; `body` is JSON, compressed with gzip."""

    title: str
    source: str
    body: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class JobOutcome:
    """What came of a job: a result, an error, or that it was cancelled."""

    state: Literal["done", "failed", "cancelled"]
    result: JsonObject | None = None
    error: JobError | None = None
    recording: NewRecording | None = None  # stored in the same transaction, under the job's id


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """Room in the queue for a job whose payload is being stored elsewhere."""

    id: str
    person: int
    kind: JobKind
    payload: JsonObject  # what finds the stored thing again after a crash


@dataclass(frozen=True, kw_only=True)
class QueueLimits:
    """How many jobs may wait or run at the same time, and how many recordings are stored."""

    per_person: int = 16
    total: int = 500
    recordings: int = 500  # of one person; a new one replaces the oldest
    recording_bytes: int = 200_000_000  # of one person, compressed; one has about 0.1 MB


class QueueFull(Exception):
    """The queue takes no more jobs, of this person or at all."""

    def __init__(self, message: str, *, is_of_person: bool) -> None:
        super().__init__(message)
        self.is_of_person = is_of_person


class LeaseLost(Exception):
    """The job belongs to a later attempt: what this one has found is not stored."""


class JobQueue(Protocol):
    """A bounded queue that is fair between people and loses no job.

    A worker holds a *lease* on a job that it has claimed and renews it. If the worker ends, the
    lease ends, and another worker claims the job with the next attempt number. From then on nothing
    that the old attempt writes is accepted, so no job has two results.
    """

    def enqueue(
        self,
        person: int,
        kind: JobKind,
        payload: JsonObject,
        *,
        key: str | None = None,
        reservation: Reservation | None = None,
    ) -> Job:
        """Store a job durably and return it. Raises `QueueFull`, unless it has a reservation.

        With a `key`, an active or done job of the same key is returned instead of a second one. The
        job takes the place of its `reservation`, in the same transaction.
        """
        ...

    def reserve(self, person: int, kind: JobKind, payload: JsonObject) -> Reservation:
        """Reserve room for a job. Raises `QueueFull`.

        What a job is about can be in another database, where no transaction of the queue reaches.
        So room is reserved first, the thing is stored then, and `enqueue` comes last: a crash in
        between leaves a reservation, from which the next start finishes the work.
        """
        ...

    def list_reservations(self) -> list[Reservation]:
        """Return the reservations of all people, oldest first."""
        ...

    def drop_reservation(self, reservation: Reservation) -> None:
        """End a reservation that no job needs."""
        ...

    def find(self, job_id: str) -> Job | None:
        """Return a job with its position in the queue."""
        ...

    def find_by_key(self, key: str) -> Job | None:
        """Return the newest job of a key, in any state."""
        ...

    def cancel(self, job_id: str) -> Job | None:
        """Cancel a queued job at once; ask the worker of a running one to end it."""
        ...

    def claim(self, worker: str, kinds: Collection[JobKind] | None = None) -> ClaimedJob | None:
        """Return the next job, which this worker then runs; None if there is none.

        A worker that can do some `kinds` only gets the next one of these.
        """
        ...

    def renew(self, claims: Iterable[ClaimedJob]) -> list[ClaimedJob]:
        """Renew the leases; return the claims that must end: cancelled, or lost to another."""
        ...

    def report_progress(self, claim: ClaimedJob, progress: JsonObject) -> bool:
        """Store progress for the person to see; False if the claim is no longer valid."""
        ...

    def finish(self, claim: ClaimedJob, outcome: JobOutcome) -> bool:
        """Store the outcome, once; False if the claim is no longer valid."""
        ...

    def release(self, worker: str, *, has_crashed: bool) -> int:
        """Return the jobs of a worker that has ended to the queue; return how many."""
        ...
