"""Limits on how often something can be done, counted in the database.

All web processes count together. A window has a fixed start, so one row and one statement are
enough; at the border of two windows twice the limit is possible, which is still a limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from sqlalchemy import case, delete, select

from shardlab.server.database.engine import Database
from shardlab.server.database.people_tables import RateLimitRow
from shardlab.server.operations.instruments import Counter
from shardlab.server.operations.quotas import PersonQuotas


@dataclass(frozen=True, kw_only=True)
class RateLimit:
    """At most `n_requests` in `seconds`."""

    name: str
    n_requests: int
    seconds: int
    noun: str = ""  # what a person has used up; empty: the message names no figure


# A class of thirty signs in from one address, so the limit of an address is generous. The limit of
# a name from one address stops guessing; that of a name from everywhere is high, so that nobody can
# lock another person out with a few requests.
SIGN_IN_ADDRESS = RateLimit(name="sign-in address", n_requests=120, seconds=900)
SIGN_IN_NAME_AT_ADDRESS = RateLimit(name="sign-in pair", n_requests=10, seconds=900)
SIGN_IN_NAME = RateLimit(name="sign-in name", n_requests=100, seconds=900)
PASSKEY_CHALLENGES = RateLimit(name="passkey challenges", n_requests=120, seconds=900)
SIGN_UP_ADDRESS = RateLimit(name="sign-up address", n_requests=60, seconds=3600)
PASSWORD_CHECK = RateLimit(name="password check", n_requests=10, seconds=900)
_RUNS = "runs and submissions"
_QUOTAS = PersonQuotas()
SUBMISSIONS = RateLimit(
    name="submissions", n_requests=_QUOTAS.submissions_per_minute, seconds=60, noun=_RUNS
)
SUBMISSIONS_HOURLY = RateLimit(
    name="submissions hourly", n_requests=_QUOTAS.submissions_per_hour, seconds=3600, noun=_RUNS
)
SUBMISSIONS_DAILY = RateLimit(
    name="submissions daily", n_requests=_QUOTAS.submissions_per_day, seconds=86400, noun=_RUNS
)
UPLOADS = RateLimit(
    name="uploads",
    n_requests=_QUOTAS.catalogue_uploads_per_hour,
    seconds=3600,
    noun="uploads of catalogues",
)
COMMENTS = RateLimit(name="comments", n_requests=300, seconds=3600)
EXPORTS = RateLimit(name="exports", n_requests=20, seconds=3600)


class TooManyRequests(Exception):
    """A limit is reached; it ends in `retry_after` seconds.

    >>> TooManyRequests(90, SUBMISSIONS_DAILY).message
    'You have made 2000 runs and submissions in this day, the limit of this server. Try again in 2 \
minutes.'
    """

    def __init__(self, retry_after: int, limit: RateLimit) -> None:
        super().__init__(f"retry after {retry_after} s")
        self.retry_after, self.limit = retry_after, limit

    @property
    def message(self) -> str:
        minutes = -(-self.retry_after // 60)
        count, unit = (-(-minutes // 60), "hour") if minutes > 120 else (minutes, "minute")
        again = f"Try again in {count} {unit}{'' if count == 1 else 's'}."
        if not self.limit.noun:
            return f"Too many requests. {again}"
        period = {60: "minute", 3600: "hour", 86400: "day"}[self.limit.seconds]
        used = f"{self.limit.n_requests} {self.limit.noun} in this {period}"
        return f"You have made {used}, the limit of this server. {again}"


class RateLimits:
    """Counts requests."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float] = time.time,
        quotas: PersonQuotas | None = None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._quotas = quotas or PersonQuotas()
        self.refusals = Counter()  # by limit

    def count(self, limit: RateLimit, subject: str) -> None:
        """Count one request. Raises `TooManyRequests` if it is one too many.

        The request is counted before it is carried out: two at the same moment both count.
        """
        limit = self._configured(limit)
        now = self._clock()
        window = int(now // limit.seconds)
        row = self._database.insert(RateLimitRow).values(
            subject=limit_key(limit, subject), window=window, n_requests=1
        )
        same_window = RateLimitRow.window == window
        counted = row.on_conflict_do_update(
            index_elements=[RateLimitRow.subject],
            set_={
                "n_requests": case((same_window, RateLimitRow.n_requests + 1), else_=1),
                "window": window,
            },
        ).returning(RateLimitRow.n_requests)
        with self._database.write(is_exclusive=False) as session:
            n_requests = session.execute(counted).scalar_one()
        if n_requests > limit.n_requests:
            self.refusals.add(limit.name)
            raise TooManyRequests(max(1, int((window + 1) * limit.seconds - now)), limit)

    def n_used(self, limit: RateLimit, subject: str) -> int:
        """Return how often something was requested in the present window."""
        window = int(self._clock() // limit.seconds)
        query = select(RateLimitRow.n_requests).where(
            RateLimitRow.subject == limit_key(limit, subject), RateLimitRow.window == window
        )
        with self._database.read() as session:
            return min(session.scalar(query) or 0, self._configured(limit).n_requests)

    def _configured(self, limit: RateLimit) -> RateLimit:
        """Return a limit as the operator has set it."""
        quotas = self._quotas
        n_requests = {
            SUBMISSIONS.name: quotas.submissions_per_minute,
            SUBMISSIONS_HOURLY.name: quotas.submissions_per_hour,
            SUBMISSIONS_DAILY.name: quotas.submissions_per_day,
            UPLOADS.name: quotas.catalogue_uploads_per_hour,
        }.get(limit.name, limit.n_requests)
        return replace(limit, n_requests=n_requests)

    def forget(self, limit: RateLimit, subject: str) -> None:
        """Start counting anew, after a success."""
        key = limit_key(limit, subject)
        with self._database.write(is_exclusive=False) as session:
            session.execute(delete(RateLimitRow).where(RateLimitRow.subject == key))


def limit_key(limit: RateLimit, subject: str) -> str:
    """Return the key of a row; subjects that people type are hashed, to bound their length."""
    from hashlib import sha256

    is_short = len(subject) <= 40 and subject.isascii() and subject.isprintable()
    return f"{limit.name}: {subject if is_short else sha256(subject.encode()).hexdigest()}"


def person_subject(person: int) -> str:
    """Return the subject of what one person does."""
    return f"person {person}"
