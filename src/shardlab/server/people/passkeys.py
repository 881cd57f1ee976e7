"""Passkeys: WebAuthn credentials that sign a person in without name and password.

Adding and signing in both take two requests: the server issues a challenge, and the authenticator
signs it together with the origin of the page. A challenge is stored as a hash, belongs to one
browser and session, ends after `CHALLENGE_SECONDS`, and is deleted by the request that uses it,
whatever comes of that request.

A passkey is an addition to the password, which every account has. So any passkey can be removed,
and nobody can remove their last way to sign in.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import delete, func, select
from sqlalchemy.exc import IntegrityError

from shardlab.server.database.engine import Database
from shardlab.server.database.people_tables import PasskeyChallengeRow, PasskeyRow, PersonRow
from shardlab.server.people.accounts import person_of
from shardlab.server.people.rate_limits import PASSKEY_CHALLENGES, SIGN_IN_ADDRESS, RateLimits
from shardlab.server.people.refusals import NotThere, Refusal
from shardlab.server.people.relying_party import RelyingParty
from shardlab.server.people.webauthn_responses import (
    AssertionBytes,
    CredentialUse,
    InvalidResponse,
    RegistrationBytes,
    signed_challenge,
    verify_assertion,
    verify_registration,
)
from shardlab.server.person import Person

CHALLENGE_SECONDS = 300
MAX_PASSKEYS = 20
# One sentence for every failure, so that it does not say which passkeys exist.
WRONG_PASSKEY = "This passkey cannot sign in here. Sign in with your password."
UNUSABLE_PASSKEY = "The passkey cannot be used: what the authenticator sent is not valid."
OLD_CHALLENGE = "The request is no longer valid: it took too long, or it was sent twice. Try again."
_LOG = logging.getLogger("shardlab.server")

Purpose = Literal["add", "sign in"]


@dataclass(frozen=True, kw_only=True)
class BrowserBinding:
    """The browser that a challenge is issued to, and its session if it is signed in."""

    browser: str
    session_token: str

    def digest(self, purpose: Purpose) -> str:
        text = f"{purpose} {self.browser} {self.session_token}"
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class PasskeySummary:
    """A passkey as its person sees it."""

    id: int
    label: str
    host: str
    is_synced: bool  # copied to other devices by the person's password manager
    created: float
    last_used: float | None
    refused: float | None  # a sign-in with a counter that went back: there may be a copy


class Passkeys:
    """Adds, lists and removes passkeys, and signs people in with them."""

    def __init__(
        self,
        database: Database,
        limits: RateLimits,
        secret: bytes,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._limits = limits
        self._secret = secret
        self._clock = clock

    # ---------------------------------------------------------------------------- challenges

    def start_adding(self, binding: BrowserBinding) -> bytes:
        """Return the challenge for a new passkey; the caller has checked the password."""
        return self._issue_challenge("add", binding)

    def start_sign_in(self, binding: BrowserBinding, *, address: str) -> bytes:
        """Return the challenge for a sign-in. Raises `TooManyRequests`.

        It is the same for everybody: the authenticator knows which accounts it has.
        """
        self._limits.count(PASSKEY_CHALLENGES, address)
        return self._issue_challenge("sign in", binding)

    def _issue_challenge(self, purpose: Purpose, binding: BrowserBinding) -> bytes:
        challenge, now = secrets.token_bytes(32), self._clock()
        with self._database.write() as session:
            expired = PasskeyChallengeRow.created < now - CHALLENGE_SECONDS
            session.execute(delete(PasskeyChallengeRow).where(expired))
            session.add(
                PasskeyChallengeRow(
                    challenge_hash=_hash(challenge),
                    binding_hash=binding.digest(purpose),
                    created=now,
                )
            )
        return challenge

    def _use_challenge(self, purpose: Purpose, binding: BrowserBinding, challenge: bytes) -> None:
        """Delete the challenge that was signed. Raises `Refusal`."""
        query = delete(PasskeyChallengeRow).where(
            PasskeyChallengeRow.challenge_hash == _hash(challenge),
            PasskeyChallengeRow.binding_hash == binding.digest(purpose),
        )
        # One statement in a transaction of its own: of two requests with the same challenge only
        # one finds the row, and a request that fails later has still used it up.
        with self._database.write() as session:
            created = session.scalar(query.returning(PasskeyChallengeRow.created))
        if created is None or self._clock() - created > CHALLENGE_SECONDS:
            raise Refusal(OLD_CHALLENGE)

    # ------------------------------------------------------------------------------- passkeys

    def user_handle(self, person: Person) -> bytes:
        """Return what an authenticator stores as the account: it says nothing about the person.

        All passkeys of a person have the same, so that an authenticator replaces an old one.
        """
        message = f"passkeys of person {person.id}".encode()
        return hmac.new(self._secret, message, hashlib.sha256).digest()

    def credential_ids(self, person: Person, party: RelyingParty) -> tuple[bytes, ...]:
        """Return the credentials that an authenticator must not make a second time."""
        query = select(PasskeyRow.credential_id).where(
            PasskeyRow.person == person.id, PasskeyRow.rp_id == party.id
        )
        with self._database.read() as session:
            return tuple(session.scalars(query))

    def add(
        self,
        person: Person,
        label: str,
        response: RegistrationBytes,
        *,
        party: RelyingParty,
        binding: BrowserBinding,
    ) -> int:
        """Store a new passkey and return its id. Raises `Refusal`."""
        label = " ".join(label.split())
        if not 1 <= len(label) <= 60 or not label.isprintable():
            raise Refusal("A name has 1 to 60 printable characters.", field="label")
        try:
            challenge = signed_challenge(response.client_data)
            self._use_challenge("add", binding, challenge)
            credential = verify_registration(response, challenge, party)
        except InvalidResponse as error:
            _LOG.info("new passkey refused: %.200r", str(error))
            raise Refusal(UNUSABLE_PASSKEY) from None
        row = PasskeyRow(
            person=person.id,
            label=label,
            credential_id=credential.credential_id,
            credential_data=credential.credential_data,
            user_handle=self.user_handle(person),
            rp_id=party.id,
            sign_count=credential.counter,
            is_backed_up=credential.is_backed_up,
            created=self._clock(),
        )
        try:
            with self._database.write() as session:
                count = select(func.count()).where(PasskeyRow.person == person.id)
                if session.execute(count).scalar_one() >= MAX_PASSKEYS:
                    raise Refusal(f"Remove one first: {MAX_PASSKEYS} passkeys are the most.")
                session.add(row)
        except IntegrityError:
            # The unique index decides, so that a credential never belongs to two accounts.
            raise Refusal(UNUSABLE_PASSKEY) from None
        return row.id

    def sign_in(
        self,
        response: AssertionBytes,
        *,
        party: RelyingParty,
        binding: BrowserBinding,
        address: str,
    ) -> Person:
        """Return the person of a passkey. Raises `Refusal` or `TooManyRequests`."""
        self._limits.count(SIGN_IN_ADDRESS, address)
        try:
            challenge = signed_challenge(response.client_data)
            self._use_challenge("sign in", binding, challenge)
            with self._database.read() as session:
                is_credential = PasskeyRow.credential_id == response.credential_id
                row = session.scalar(select(PasskeyRow).where(is_credential))
            if row is None or not hmac.compare_digest(row.user_handle, response.user_handle):
                raise InvalidResponse("unknown credential")
            use = verify_assertion(response, challenge, party, row.credential_data)
        except InvalidResponse as error:
            _LOG.info("sign-in with a passkey refused: %.200r", str(error))
            raise Refusal(WRONG_PASSKEY) from None
        person = self._record_use(row.id, use)
        if person is None:
            raise Refusal(WRONG_PASSKEY)
        return person

    def _record_use(self, passkey_id: int, use: CredentialUse) -> Person | None:
        """Store the counter and return the person; None for a counter that went back.

        An authenticator that counts its signatures never sends a number twice. If it does, two
        devices have the key, and which of them is the person's cannot be known. Passkeys that a
        password manager synchronizes do not count: theirs is always 0.
        """
        now = self._clock()
        with self._database.write() as session:
            row = session.get(PasskeyRow, passkey_id)
            if row is None:  # removed in this moment
                return None
            if (use.counter or row.sign_count) and use.counter <= row.sign_count:
                _LOG.warning("passkey %d refused: its counter went back", passkey_id)
                row.refused = now
                return None
            row.sign_count, row.last_used = use.counter, now
            row.is_backed_up = use.is_backed_up
            person = session.get_one(PersonRow, row.person)
            person.signed_in = now
            return person_of(person)

    def remove(self, person: Person, passkey_id: int) -> None:
        """Remove one of the person's passkeys. Raises `NotThere`."""
        query = delete(PasskeyRow).where(
            PasskeyRow.id == passkey_id, PasskeyRow.person == person.id
        )
        with self._database.write() as session:
            if session.execute(query.returning(PasskeyRow.id)).first() is None:
                raise NotThere

    def list_passkeys(self, person: Person) -> tuple[PasskeySummary, ...]:
        """Return the person's passkeys, oldest first."""
        query = select(PasskeyRow).where(PasskeyRow.person == person.id).order_by(PasskeyRow.id)
        with self._database.read() as session:
            return tuple(
                PasskeySummary(
                    id=row.id,
                    label=row.label,
                    host=row.rp_id,
                    is_synced=row.is_backed_up,
                    created=row.created,
                    last_used=row.last_used,
                    refused=row.refused,
                )
                for row in session.scalars(query)
            )


def _hash(challenge: bytes) -> str:
    return hashlib.sha256(challenge).hexdigest()
