"""What one person has used of each limit, for the page of their account and for scripts."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select

from shardlab._text.units import bytes_text
from shardlab.server.database.engine import Database
from shardlab.server.database.people_tables import CatalogueRow
from shardlab.server.database.tables import JobRow, RecordingRow
from shardlab.server.operations.quotas import ServerLimits
from shardlab.server.people.rate_limits import (
    SUBMISSIONS_DAILY,
    SUBMISSIONS_HOURLY,
    UPLOADS,
    RateLimits,
    person_subject,
)
from shardlab.server.person import Person


@dataclass(frozen=True, kw_only=True)
class LimitUsage:
    """One limit of a person."""

    name: str  # stable, for scripts
    label: str
    used: int
    limit: int
    is_bytes: bool = False
    replaces_oldest: bool = False  # nothing is refused: the oldest one makes room

    @property
    def text(self) -> str:
        """Return both figures, to read."""
        if self.is_bytes:
            return f"{bytes_text(self.used)} of {bytes_text(self.limit)}"
        return f"{self.used:,} of {self.limit:,}"

    @property
    def is_reached(self) -> bool:
        return self.used >= self.limit and not self.replaces_oldest


def person_usage(
    database: Database, rates: RateLimits, limits: ServerLimits, person: Person
) -> tuple[LimitUsage, ...]:
    """Return every limit of a person, with what is used of it now."""
    subject = person_subject(person.id)
    is_active = JobRow.state.in_(("reserved", "queued", "running")) & (JobRow.person == person.id)
    size = func.length(RecordingRow.body) + func.length(RecordingRow.source)
    own_recordings = RecordingRow.person == person.id
    with database.read() as session:

        def count(condition: ColumnElement[bool]) -> int:
            return session.scalar(select(func.count()).where(condition)) or 0

        n_active, n_recordings = count(is_active), count(own_recordings)
        n_bytes = session.scalar(select(func.sum(size)).where(own_recordings)) or 0
        n_catalogues = count(CatalogueRow.person == person.id)
    quotas = limits.person
    usage = [
        LimitUsage(
            name="submissions_per_day",
            label="Runs and submissions today (UTC)",
            used=rates.n_used(SUBMISSIONS_DAILY, subject),
            limit=quotas.submissions_per_day,
        ),
        LimitUsage(
            name="submissions_per_hour",
            label="Runs and submissions this hour",
            used=rates.n_used(SUBMISSIONS_HOURLY, subject),
            limit=quotas.submissions_per_hour,
        ),
        LimitUsage(
            name="jobs_in_queue",
            label="Jobs that wait or run",
            used=n_active,
            limit=quotas.jobs_in_queue,
        ),
        LimitUsage(
            name="recordings",
            label="Recordings",
            used=n_recordings,
            limit=quotas.recordings,
            replaces_oldest=True,
        ),
        LimitUsage(
            name="recording_bytes",
            label="Size of the recordings",
            used=n_bytes,
            limit=quotas.recording_bytes,
            is_bytes=True,
            replaces_oldest=True,
        ),
    ]
    if person.is_teacher:
        usage += [
            LimitUsage(
                name="catalogues",
                label="Catalogues of yours",
                used=n_catalogues,
                limit=quotas.catalogues,
            ),
            LimitUsage(
                name="catalogue_uploads_per_hour",
                label="Uploads of catalogues this hour",
                used=rates.n_used(UPLOADS, subject),
                limit=quotas.catalogue_uploads_per_hour,
            ),
        ]
    return tuple(usage)
