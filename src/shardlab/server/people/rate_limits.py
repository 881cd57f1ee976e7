"""Limits on how often something can be done, counted in the database.

All web processes count together. A window has a fixed start, so one row and one statement are
enough; at the border of two windows twice the limit is possible, which is still a limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import case, delete

from shardlab.server.database.engine import Database
from shardlab.server.database.people_tables import RateLimitRow


@dataclass(frozen=True, kw_only=True)
class RateLimit:
    """At most `n_requests` in `seconds`."""

    name: str
    n_requests: int
    seconds: int


# A class of thirty signs in from one address, so the limit of an address is generous. The limit of
# a name from one address stops guessing; that of a name from everywhere is high, so that nobody can
# lock another person out with a few requests.
SIGN_IN_ADDRESS = RateLimit(name="sign-in address", n_requests=120, seconds=900)
SIGN_IN_NAME_AT_ADDRESS = RateLimit(name="sign-in pair", n_requests=10, seconds=900)
SIGN_IN_NAME = RateLimit(name="sign-in name", n_requests=100, seconds=900)
PASSKEY_CHALLENGES = RateLimit(name="passkey challenges", n_requests=120, seconds=900)
SIGN_UP_ADDRESS = RateLimit(name="sign-up address", n_requests=60, seconds=3600)
PASSWORD_CHECK = RateLimit(name="password check", n_requests=10, seconds=900)
SUBMISSIONS = RateLimit(name="submissions", n_requests=30, seconds=60)
SUBMISSIONS_HOURLY = RateLimit(name="submissions hourly", n_requests=600, seconds=3600)
UPLOADS = RateLimit(name="uploads", n_requests=20, seconds=3600)
COMMENTS = RateLimit(name="comments", n_requests=300, seconds=3600)
EXPORTS = RateLimit(name="exports", n_requests=20, seconds=3600)


class TooManyRequests(Exception):
    """A limit is reached; it ends in `retry_after` seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"retry after {retry_after} s")
        self.retry_after = retry_after

    @property
    def message(self) -> str:
        minutes = -(-self.retry_after // 60)
        unit = "minute" if minutes == 1 else "minutes"
        return f"Too many requests. Try again in {minutes} {unit}."


class RateLimits:
    """Counts requests."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def count(self, limit: RateLimit, subject: str) -> None:
        """Count one request. Raises `TooManyRequests` if it is one too many.

        The request is counted before it is carried out: two at the same moment both count.
        """
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
            raise TooManyRequests(max(1, int((window + 1) * limit.seconds - now)))

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
