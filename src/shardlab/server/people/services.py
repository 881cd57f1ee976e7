"""The services of server mode, built once per web process."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import func, select

from shardlab.server.database.engine import Database
from shardlab.server.database.people_tables import PersonRow, SubmissionRow
from shardlab.server.database.tables import JobRow, RecordingRow
from shardlab.server.people.accounts import Accounts
from shardlab.server.people.catalogues import Catalogues
from shardlab.server.people.classes import Classes
from shardlab.server.people.passwords import PasswordHashing
from shardlab.server.people.person_data import PersonData
from shardlab.server.people.rate_limits import RateLimits
from shardlab.server.people.sessions import ApiTokens, Sessions
from shardlab.server.person import Person
from shardlab.server.settings import ServerSettings

if TYPE_CHECKING:
    from shardlab.server.people.passkeys import Passkeys


@dataclass(frozen=True, kw_only=True)
class QueueState:
    """How many jobs there are."""

    n_queued: int
    n_running: int
    n_failed_last_day: int


@dataclass(frozen=True, kw_only=True)
class FailedJob:
    """A job that failed, for the admin."""

    id: str
    kind: str
    person: str
    finished: float | None
    message: str


@dataclass(frozen=True, kw_only=True)
class People:
    """What pages and API of server mode call."""

    accounts: Accounts
    sessions: Sessions
    api_tokens: ApiTokens
    passkeys: Passkeys
    classes: Classes
    catalogues: Catalogues
    limits: RateLimits
    data: PersonData
    database: Database

    def owner_of_job(self, job_id: str) -> int | None:
        """Return whose job it is; None if there is no such job."""
        with self.database.read() as session:
            return session.scalar(select(JobRow.person).where(JobRow.id == job_id))

    def owner_of_submission(self, number: int) -> int | None:
        """Return whose submission it is; None if there is no such submission."""
        with self.database.read() as session:
            query = select(SubmissionRow.person).where(SubmissionRow.number == number)
            return session.scalar(query)

    def owner_of_recording(self, recording_id: str) -> int | None:
        """Return whose recording it is; None if there is no such recording."""
        with self.database.read() as session:
            return session.scalar(
                select(RecordingRow.person).where(RecordingRow.id == recording_id)
            )

    def queue_state(self) -> QueueState:
        """Return how many jobs wait, run, and have failed since yesterday."""
        count = select(func.count()).select_from(JobRow)
        yesterday = time.time() - 24 * 3600
        with self.database.read() as session:
            return QueueState(
                n_queued=session.execute(count.where(JobRow.state == "queued")).scalar_one(),
                n_running=session.execute(count.where(JobRow.state == "running")).scalar_one(),
                n_failed_last_day=session.execute(
                    count.where(JobRow.state == "failed", JobRow.finished > yesterday)
                ).scalar_one(),
            )

    def recent_failures(self, limit: int = 20) -> tuple[FailedJob, ...]:
        """Return the newest jobs that failed."""
        query = (
            select(JobRow, PersonRow.name)
            .outerjoin(PersonRow, PersonRow.id == JobRow.person)
            .where(JobRow.state == "failed")
            .order_by(JobRow.number.desc())
            .limit(limit)
        )
        with self.database.read() as session:
            rows = session.execute(query).all()
        return tuple(
            FailedJob(
                id=row.id,
                kind=row.kind,
                person=name or "",
                finished=row.finished,
                message=_error_message(row.error),
            )
            for row, name in rows
        )

    def delete_account(self, person: Person) -> None:
        """Delete a person with everything of theirs. Raises `Refusal` for the last admin."""
        self.accounts.check_can_leave(person)
        self.data.delete(person)
        self.catalogues.delete_unused_folders()


def _error_message(error: str | None) -> str:
    return str(json.loads(error).get("message", ""))[:300] if error else ""


def open_people(
    settings: ServerSettings, database: Database, hashing: PasswordHashing | None = None
) -> People:
    """Return the services on a database."""
    # Here: it loads fido2 and cryptography, and local mode needs neither.
    from shardlab.server.people.passkeys import Passkeys

    limits = RateLimits(database, quotas=settings.limits.person)
    return People(
        accounts=Accounts(database, limits, hashing or PasswordHashing()),
        sessions=Sessions(database),
        api_tokens=ApiTokens(database),
        passkeys=Passkeys(database, limits, settings.secret.encode()),
        classes=Classes(database, settings.secret.encode()),
        catalogues=Catalogues(
            database, settings.data_folder, max_catalogues=settings.limits.person.catalogues
        ),
        limits=limits,
        data=PersonData(database),
        database=database,
    )
