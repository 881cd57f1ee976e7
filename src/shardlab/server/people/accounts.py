"""Accounts: sign up, sign in, roles, passwords."""

from __future__ import annotations

import secrets
import time
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from sqlalchemy import delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shardlab.server.database.engine import Database
from shardlab.server.database.people_tables import ApiTokenRow, PasskeyRow, PersonRow, SessionRow
from shardlab.server.people.passwords import PasswordHashing, check_password_rules
from shardlab.server.people.rate_limits import (
    PASSWORD_CHECK,
    SIGN_IN_ADDRESS,
    SIGN_IN_NAME,
    SIGN_IN_NAME_AT_ADDRESS,
    SIGN_UP_ADDRESS,
    RateLimits,
    person_subject,
)
from shardlab.server.people.refusals import NotThere, Refusal
from shardlab.server.person import Person, Role

MAX_NAME = 40
_NAME_MARKS = " .-_'"
# A letter of Devanagari, Thai or Vietnamese is one character and up to three combining marks; more
# of them are no name, and would be drawn over the lines above and below.
_MAX_COMBINING_MARKS = 3
# One sentence for every failure, so that it does not say whether the name exists.
WRONG_SIGN_IN = "The name or the password is wrong."


@dataclass(frozen=True, kw_only=True)
class AccountSummary:
    """An account as the admin sees it."""

    id: int
    name: str
    role: str
    created: float
    signed_in: float | None
    n_sessions: int


def clean_name(text: str) -> str:
    """Return a name in one Unicode form. Raises `Refusal`.

    >>> clean_name("  Ada   Lovelace ")
    'Ada Lovelace'
    """
    name = " ".join(unicodedata.normalize("NFKC", text).split())
    if not 2 <= len(name) <= MAX_NAME:
        raise Refusal(f"A name has 2 to {MAX_NAME} characters.", field="name")
    if not _has_name_characters(name):
        raise Refusal("A name has letters, digits, spaces and . - _ ' only.", field="name")
    if not name[0].isalnum():
        raise Refusal("A name begins with a letter or a digit.", field="name")
    return name


def _has_name_characters(name: str) -> bool:
    n_marks = 0
    for character in name:
        is_combining = unicodedata.category(character) in ("Mn", "Mc")
        n_marks = n_marks + 1 if is_combining else 0
        is_plain = character.isalnum() or character in _NAME_MARKS
        if not (is_plain or is_combining) or n_marks > _MAX_COMBINING_MARKS:
            return False
    return True


def name_key(name: str) -> str:
    """Return what two names are compared by.

    >>> name_key("ADA") == name_key(" ada ")
    True
    """
    folded = unicodedata.normalize("NFKC", name).casefold()
    return " ".join(folded.split())[: 4 * MAX_NAME]


class Accounts:
    """Creates and changes accounts, and checks passwords."""

    def __init__(
        self,
        database: Database,
        limits: RateLimits,
        hashing: PasswordHashing,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._limits = limits
        self._hashing = hashing
        self._clock = clock

    def sign_up(self, name: str, password: str, *, address: str) -> Person:
        """Create the account of a learner. Raises `Refusal` or `TooManyRequests`."""
        self._limits.count(SIGN_UP_ADDRESS, address)
        return self.create(name, password, role="learner")

    def create(self, name: str, password: str, *, role: Role) -> Person:
        """Create an account. Raises `Refusal`."""
        name = clean_name(name)
        check_password_rules(password, name)
        row = PersonRow(
            name=name,
            name_key=name_key(name),
            role=role,
            password_hash=self._hashing.hash(password),
            created=self._clock(),
        )
        try:
            with self._database.write() as session:
                session.add(row)
        except IntegrityError:
            # The unique index decides, so that two people at the same moment cannot both have it.
            raise Refusal("This name is taken.", field="name") from None
        return person_of(row)

    def sign_in(self, name: str, password: str, *, address: str) -> Person:
        """Return the person. Raises `Refusal`, the same for each reason, or `TooManyRequests`."""
        key = name_key(name)
        pair = f"{key} at {address}"
        self._limits.count(SIGN_IN_ADDRESS, address)
        self._limits.count(SIGN_IN_NAME_AT_ADDRESS, pair)
        self._limits.count(SIGN_IN_NAME, key)
        with self._database.read() as session:
            row = session.scalar(select(PersonRow).where(PersonRow.name_key == key))
        if not self._is_correct(row, password) or row is None:
            raise Refusal(WRONG_SIGN_IN)
        self._limits.forget(SIGN_IN_NAME_AT_ADDRESS, pair)
        with self._database.write() as session:
            stored = session.get(PersonRow, row.id)
            if stored is None:  # deleted in this moment
                raise Refusal(WRONG_SIGN_IN)
            stored.signed_in = self._clock()
            if self._hashing.is_outdated(stored.password_hash):
                stored.password_hash = self._hashing.hash(password)
            return person_of(stored)

    def _is_correct(self, row: PersonRow | None, password: str) -> bool:
        return self._hashing.is_correct(None if row is None else row.password_hash, password)

    def check_password(self, person: Person, password: str) -> None:
        """Raise `Refusal` unless the password is the person's own, as before a deletion."""
        self._limits.count(PASSWORD_CHECK, person_subject(person.id))
        with self._database.read() as session:
            row = session.get(PersonRow, person.id)
        if not self._is_correct(row, password):
            raise Refusal("The current password is wrong.", field="current_password")

    def change_password(self, person: Person, password: str, *, except_session: int | None) -> None:
        """Set a password and end every other session. Raises `Refusal`."""
        check_password_rules(password, person.name)
        password_hash = self._hashing.hash(password)
        with self._database.write() as session:
            row = _get(session.get(PersonRow, person.id))
            row.password_hash = password_hash
            row.must_change_password = False
            for other in session.scalars(select(SessionRow).where(SessionRow.person == person.id)):
                # Whoever knew the old password must not stay signed in with it.
                if other.id != except_session:
                    session.delete(other)

    def reset_password(self, person_id: int) -> str:
        """Set and return a random password; the person changes it after the next sign-in.

        From then on it is the only way in. Sessions end, passkeys are removed and tokens of scripts
        revoked, because the person may ask for it after somebody else has used the account.
        """
        password = random_password()
        password_hash = self._hashing.hash(password)
        with self._database.write() as session:
            row = _get(session.get(PersonRow, person_id))
            row.password_hash, row.must_change_password = password_hash, True
            for other in session.scalars(select(SessionRow).where(SessionRow.person == person_id)):
                session.delete(other)
            session.execute(delete(PasskeyRow).where(PasskeyRow.person == person_id))
            session.execute(delete(ApiTokenRow).where(ApiTokenRow.person == person_id))
        return password

    def set_role(self, person_id: int, role: str) -> None:
        """Change a role. Raises `Refusal`, also for the last admin."""
        if role not in get_args(Role):
            raise Refusal("A role is learner, teacher or admin.", field="role")
        with self._database.write() as session:
            row = _get(session.get(PersonRow, person_id))
            if row.role == "admin" and role != "admin":
                _keep_one_admin(_count_admins(session))
            row.role = role

    def check_can_leave(self, person: Person) -> None:
        """Raise `Refusal` for the last admin: nobody could administer the server."""
        if person.is_admin:
            with self._database.read() as session:
                _keep_one_admin(_count_admins(session))

    def find(self, name: str) -> Person | None:
        """Return the person of this name."""
        with self._database.read() as session:
            row = session.scalar(select(PersonRow).where(PersonRow.name_key == name_key(name)))
            return None if row is None else person_of(row)

    def get(self, person_id: int) -> Person:
        """Return a person. Raises `NotThere`."""
        with self._database.read() as session:
            return person_of(_get(session.get(PersonRow, person_id)))

    def must_change_password(self, person: Person) -> bool:
        """Return whether the password is one that an admin set."""
        with self._database.read() as session:
            row = session.get(PersonRow, person.id)
            return row is not None and row.must_change_password

    def list_people(self, *, search: str = "", limit: int = 200) -> tuple[AccountSummary, ...]:
        """Return the accounts whose name contains `search`, by name."""
        n_sessions = select(func.count()).where(SessionRow.person == PersonRow.id).scalar_subquery()
        query = select(PersonRow, n_sessions).order_by(PersonRow.name_key).limit(limit)
        if search:
            query = query.where(PersonRow.name_key.contains(name_key(search), autoescape=True))
        with self._database.read() as session:
            return tuple(
                AccountSummary(
                    id=row.id,
                    name=row.name,
                    role=row.role,
                    created=row.created,
                    signed_in=row.signed_in,
                    n_sessions=count,
                )
                for row, count in session.execute(query)
            )


def random_password() -> str:
    """Return a password of 80 random bits that can be read aloud."""
    return "-".join(secrets.token_hex(2) for _ in range(5))


def person_of(row: PersonRow) -> Person:
    """Return the person of a row."""
    role: Role = next((role for role in get_args(Role) if role == row.role), "learner")
    return Person(id=row.id, name=row.name, role=role)


def _get(row: PersonRow | None) -> PersonRow:
    if row is None:
        raise NotThere
    return row


def _count_admins(session: Session) -> int:
    query = select(func.count()).select_from(PersonRow).where(PersonRow.role == "admin")
    return session.execute(query).scalar_one()


def _keep_one_admin(n_admins: int) -> None:
    if n_admins <= 1:
        raise Refusal("The last admin stays: make another person admin first.", field="role")
