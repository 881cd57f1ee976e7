"""Sessions of browsers, and tokens of scripts."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import ColumnElement, delete, select

from shardlab.server.database.engine import Database
from shardlab.server.database.people_tables import ApiTokenRow, PersonRow, SessionRow
from shardlab.server.people.accounts import person_of
from shardlab.server.people.refusals import NotThere, Refusal
from shardlab.server.people.tokens import API_TOKEN_PREFIX, hash_token, new_token
from shardlab.server.person import Person

IDLE_SECONDS = 14 * 24 * 3600  # without a request
ABSOLUTE_SECONDS = 60 * 24 * 3600  # since the sign-in
# `last_used` is written at most this often: a page must not cost a write.
_TOUCH_SECONDS = 300
MAX_TOKENS = 20
MAX_SESSIONS = 50  # the oldest end first


@dataclass(frozen=True, kw_only=True)
class SessionSummary:
    """A session as its person sees it."""

    id: int
    browser: str
    created: float
    last_used: float


@dataclass(frozen=True, kw_only=True)
class ApiTokenSummary:
    """A token as its person sees it."""

    id: int
    label: str
    can_submit: bool
    created: float
    last_used: float | None


@dataclass(frozen=True, kw_only=True)
class SignedInSession:
    """A session that was found, and its person."""

    id: int
    person: Person
    must_change_password: bool  # an admin set the password


class Sessions:
    """Starts, finds and ends sessions."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def start(self, person: Person, *, user_agent: str, replaces: str = "") -> str:
        """Return the token of a new session; `replaces` is the one that ends with it.

        A token that existed before the sign-in, maybe chosen by somebody else, never becomes a
        signed-in one (session fixation).
        """
        token, now = new_token(), self._clock()
        with self._database.write() as session:
            session.execute(delete(SessionRow).where(SessionRow.token_hash == hash_token(replaces)))
            session.execute(delete(SessionRow).where(self._is_expired(now)))
            rows = session.scalars(
                select(SessionRow)
                .where(SessionRow.person == person.id)
                .order_by(SessionRow.last_used.desc())
                .offset(MAX_SESSIONS - 1)
            )
            for row in rows.all():
                session.delete(row)
            session.add(
                SessionRow(
                    person=person.id,
                    token_hash=hash_token(token),
                    created=now,
                    last_used=now,
                    browser=describe_browser(user_agent),
                )
            )
        return token

    def find(self, token: str) -> SignedInSession | None:
        """Return the session of a token, unless it is over."""
        if not token:
            return None
        now = self._clock()
        with self._database.read() as session:
            found = session.execute(
                select(SessionRow, PersonRow)
                .join(PersonRow, PersonRow.id == SessionRow.person)
                .where(SessionRow.token_hash == hash_token(token), ~self._is_expired(now))
            ).first()
            if found is None:
                return None
            row, person = found[0], person_of(found[1])
            session_id, last_used = row.id, row.last_used
            must_change_password = found[1].must_change_password
        if now - last_used > _TOUCH_SECONDS:
            with self._database.write(is_exclusive=False) as session:
                stored = session.get(SessionRow, session_id)
                if stored is not None:
                    stored.last_used = now
        return SignedInSession(
            id=session_id, person=person, must_change_password=must_change_password
        )

    def end(self, token: str) -> None:
        """End the session of a token."""
        with self._database.write() as session:
            session.execute(delete(SessionRow).where(SessionRow.token_hash == hash_token(token)))

    def end_session(self, person: Person, session_id: int) -> None:
        """End one of the person's sessions. Raises `NotThere`."""
        query = delete(SessionRow).where(
            SessionRow.id == session_id, SessionRow.person == person.id
        )
        with self._database.write() as session:
            if session.execute(query.returning(SessionRow.id)).first() is None:
                raise NotThere

    def list_sessions(self, person: Person) -> tuple[SessionSummary, ...]:
        """Return the person's sessions, the last used first."""
        query = (
            select(SessionRow)
            .where(SessionRow.person == person.id, ~self._is_expired(self._clock()))
            .order_by(SessionRow.last_used.desc())
        )
        with self._database.read() as session:
            return tuple(
                SessionSummary(
                    id=row.id, browser=row.browser, created=row.created, last_used=row.last_used
                )
                for row in session.scalars(query)
            )

    @staticmethod
    def _is_expired(now: float) -> ColumnElement[bool]:
        return (SessionRow.last_used < now - IDLE_SECONDS) | (
            SessionRow.created < now - ABSOLUTE_SECONDS
        )


class ApiTokens:
    """Creates, finds and revokes tokens of scripts."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def create(self, person: Person, label: str, *, can_submit: bool) -> str:
        """Return a new token, which cannot be shown again. Raises `Refusal`."""
        label = " ".join(label.split())
        if not 1 <= len(label) <= 60 or not label.isprintable():
            raise Refusal("A label has 1 to 60 printable characters.", field="label")
        token = API_TOKEN_PREFIX + new_token()
        with self._database.write() as session:
            rows = session.scalars(select(ApiTokenRow).where(ApiTokenRow.person == person.id))
            if len(rows.all()) >= MAX_TOKENS:
                raise Refusal(f"Revoke one first: {MAX_TOKENS} tokens are the most.", field="label")
            session.add(
                ApiTokenRow(
                    person=person.id,
                    label=label,
                    token_hash=hash_token(token),
                    can_submit=can_submit,
                    created=self._clock(),
                )
            )
        return token

    def find(self, token: str) -> tuple[Person, bool] | None:
        """Return the person of a token, and whether it can submit."""
        if not token.startswith(API_TOKEN_PREFIX):
            return None
        with self._database.read() as session:
            found = session.execute(
                select(ApiTokenRow, PersonRow)
                .join(PersonRow, PersonRow.id == ApiTokenRow.person)
                .where(ApiTokenRow.token_hash == hash_token(token))
            ).first()
            if found is None:
                return None
            token_id, last_used = found[0].id, found[0].last_used
            result = person_of(found[1]), found[0].can_submit
        now = self._clock()
        if last_used is None or now - last_used > _TOUCH_SECONDS:
            with self._database.write(is_exclusive=False) as session:
                stored = session.get(ApiTokenRow, token_id)
                if stored is not None:
                    stored.last_used = now
        return result

    def revoke(self, person: Person, token_id: int) -> None:
        """Revoke one of the person's tokens. Raises `NotThere`."""
        query = delete(ApiTokenRow).where(
            ApiTokenRow.id == token_id, ApiTokenRow.person == person.id
        )
        with self._database.write() as session:
            if session.execute(query.returning(ApiTokenRow.id)).first() is None:
                raise NotThere

    def list_tokens(self, person: Person) -> tuple[ApiTokenSummary, ...]:
        """Return the person's tokens, oldest first."""
        query = select(ApiTokenRow).where(ApiTokenRow.person == person.id).order_by(ApiTokenRow.id)
        with self._database.read() as session:
            return tuple(
                ApiTokenSummary(
                    id=row.id,
                    label=row.label,
                    can_submit=row.can_submit,
                    created=row.created,
                    last_used=row.last_used,
                )
                for row in session.scalars(query)
            )


def describe_browser(user_agent: str) -> str:
    """Return a browser and its system in words, for the list of sessions.

    >>> describe_browser("Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/140.0")
    'Firefox on Linux'
    """
    # The order matters: Edge says that it is Chrome, and Chrome that it is Safari.
    browsers = (("Edg", "Edge"), ("Firefox", "Firefox"), ("Chrom", "Chrome"), ("Safari", "Safari"))
    systems = (
        ("Android", "Android"),
        ("iPhone|iPad", "iOS"),
        ("Windows", "Windows"),
        ("Mac OS", "macOS"),
        ("Linux|X11", "Linux"),
    )
    browser = next((name for mark, name in browsers if mark in user_agent), "A browser")
    system = next((name for mark, name in systems if re.search(mark, user_agent)), "")
    return f"{browser} on {system}" if system else browser
