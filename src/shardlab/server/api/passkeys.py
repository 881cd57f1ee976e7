"""Passkeys: add, list and remove them, and sign in with one."""

from __future__ import annotations

import base64
import binascii

from fastapi import APIRouter, Request, Response

from shardlab.server.api.account import PeopleServices, SignedIn
from shardlab.server.api.api_models import ERROR_RESPONSES
from shardlab.server.api.people_models import (
    CreatedRow,
    NewPasskeyBody,
    PasskeyBody,
    PasskeyCreation,
    PasskeyRequest,
    PasskeySignIn,
    PasswordProof,
    RowId,
    SignedInBody,
)
from shardlab.server.people.passkeys import CHALLENGE_SECONDS, BrowserBinding
from shardlab.server.people.rate_limits import TooManyRequests
from shardlab.server.people.refusals import Refusal
from shardlab.server.people.relying_party import RelyingParty, relying_party
from shardlab.server.people.webauthn_responses import (
    ALGORITHMS,
    AssertionBytes,
    RegistrationBytes,
)
from shardlab.server.session_cookie import client_address, local_path, start_session

router = APIRouter(prefix="/api/v1", tags=["passkeys"], responses=ERROR_RESPONSES)


def _party(request: Request) -> RelyingParty:
    return relying_party(request.app.state.settings, request.headers.get("host", ""))


def _binding(request: Request) -> BrowserBinding:
    state = request.state
    return BrowserBinding(browser=state.browser, session_token=state.identity.session_token)


def _encode(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _decode(text: str) -> bytes:
    """Return the bytes of base64url, with or without padding. Raises `Refusal`."""
    try:
        return base64.urlsafe_b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4))
    except binascii.Error:
        raise Refusal("A field is not base64url.") from None


@router.get("/account/passkeys")
def list_passkeys(person: SignedIn, people: PeopleServices) -> list[PasskeyBody]:
    """Return the passkeys of the account."""
    return [PasskeyBody(**vars(passkey)) for passkey in people.passkeys.list_passkeys(person)]


@router.post("/account/passkeys/challenge")
def start_adding(
    proof: PasswordProof, request: Request, person: SignedIn, people: PeopleServices
) -> PasskeyCreation:
    """Return what `navigator.credentials.create` needs; the password confirms who is there."""
    party = _party(request)
    # Otherwise a session that was left open on a shared machine would become a permanent key.
    people.accounts.check_password(person, proof.current_password)
    known = people.passkeys.credential_ids(person, party)
    return PasskeyCreation(
        challenge=_encode(people.passkeys.start_adding(_binding(request))),
        rp_id=party.id,
        user_handle=_encode(people.passkeys.user_handle(person)),
        user_name=person.name,
        algorithms=list(ALGORITHMS),
        exclude_credentials=[_encode(credential_id) for credential_id in known],
        timeout_ms=CHALLENGE_SECONDS * 1000,
    )


@router.post("/account/passkeys", status_code=201)
def add_passkey(
    body: NewPasskeyBody, request: Request, person: SignedIn, people: PeopleServices
) -> CreatedRow:
    """Store the passkey that an authenticator has made."""
    response = RegistrationBytes(
        client_data=_decode(body.client_data),
        attestation_object=_decode(body.attestation_object),
    )
    passkey_id = people.passkeys.add(
        person,
        body.label,
        response,
        party=_party(request),
        binding=_binding(request),
    )
    return CreatedRow(id=passkey_id)


@router.delete("/account/passkeys/{passkey_id}", status_code=204)
def remove_passkey(passkey_id: RowId, person: SignedIn, people: PeopleServices) -> Response:
    """Remove a passkey; the password still signs in."""
    people.passkeys.remove(person, passkey_id)
    return Response(status_code=204)


@router.post("/sign-in/passkey/challenge")
def start_sign_in(request: Request, people: PeopleServices) -> PasskeyRequest:
    """Return what `navigator.credentials.get` needs; it names no account."""
    party = _party(request)
    challenge = people.passkeys.start_sign_in(_binding(request), address=client_address(request))
    return PasskeyRequest(
        challenge=_encode(challenge), rp_id=party.id, timeout_ms=CHALLENGE_SECONDS * 1000
    )


@router.post("/sign-in/passkey")
def sign_in(
    body: PasskeySignIn, request: Request, response: Response, people: PeopleServices
) -> SignedInBody:
    """Sign the browser in with what an authenticator has signed."""
    assertion = AssertionBytes(
        credential_id=_decode(body.credential_id),
        client_data=_decode(body.client_data),
        authenticator_data=_decode(body.authenticator_data),
        signature=_decode(body.signature),
        user_handle=_decode(body.user_handle),
    )
    try:
        person = people.passkeys.sign_in(
            assertion,
            party=_party(request),
            binding=_binding(request),
            address=client_address(request),
        )
    except (Refusal, TooManyRequests):
        request.app.state.metrics.sign_in_failures.add("passkey")
        raise
    start_session(request, response, people, person)
    return SignedInBody(next=local_path(body.next))
