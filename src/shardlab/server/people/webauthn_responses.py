"""What authenticators send, verified with the library fido2.

fido2 reads bytes of strangers and raises whatever its parsers raise: ValueError, KeyError,
struct.error, UnicodeDecodeError and others. Here each of them is `InvalidResponse`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fido2.cose import ES256, RS256, EdDSA
from fido2.server import Fido2Server
from fido2.utils import websafe_encode
from fido2.webauthn import (
    AttestationObject,
    AttestedCredentialData,
    AuthenticationResponse,
    AuthenticatorAssertionResponse,
    AuthenticatorAttestationResponse,
    AuthenticatorData,
    CollectedClientData,
    PublicKeyCredentialRpEntity,
    RegistrationResponse,
    UserVerificationRequirement,
)

from shardlab.server.people.relying_party import RelyingParty

# What authenticators have, best first; also compared with the key that one sends.
ALGORITHMS = (EdDSA.ALGORITHM, ES256.ALGORITHM, RS256.ALGORITHM)
_CREDENTIAL_ID_BYTES = range(16, 1024)  # by the standard
_MAX_PUBLIC_KEY = 2000  # bytes; RSA with 4096 bits has 527


class InvalidResponse(Exception):
    """The bytes cannot be read, or are not what an authenticator would have signed here."""


@dataclass(frozen=True, kw_only=True)
class RegistrationBytes:
    """What a browser sends when an authenticator has made a passkey."""

    client_data: bytes
    attestation_object: bytes


@dataclass(frozen=True, kw_only=True)
class AssertionBytes:
    """What a browser sends when an authenticator has signed a challenge."""

    credential_id: bytes
    client_data: bytes
    authenticator_data: bytes
    signature: bytes
    user_handle: bytes


@dataclass(frozen=True, kw_only=True)
class NewCredential:
    """A verified new passkey: the public half of its key."""

    credential_id: bytes
    credential_data: bytes  # with the public key
    counter: int
    is_backed_up: bool


@dataclass(frozen=True, kw_only=True)
class CredentialUse:
    """A verified signature."""

    counter: int
    is_backed_up: bool


@contextmanager
def _every_error_is_invalid() -> Iterator[None]:
    try:
        yield
    except InvalidResponse:
        raise
    except Exception as error:
        raise InvalidResponse(f"{type(error).__name__}: {error}") from None


def signed_challenge(client_data: bytes) -> bytes:
    """Return the challenge in the client data; nothing is verified yet."""
    with _every_error_is_invalid():
        return bytes(CollectedClientData(client_data).challenge)


def verify_registration(
    response: RegistrationBytes, challenge: bytes, party: RelyingParty
) -> NewCredential:
    """Return the new credential. Raises `InvalidResponse`.

    The attestation is not compared with a list of makers: a person chooses the authenticator.
    """
    with _every_error_is_invalid():
        attestation = AttestationObject(response.attestation_object)
        credential = attestation.auth_data.credential_data
        if credential is None:
            raise InvalidResponse("no credential")
        _check_credential(credential)
        client_data = CollectedClientData(response.client_data)
        registration = RegistrationResponse(
            raw_id=credential.credential_id,
            response=AuthenticatorAttestationResponse(
                client_data=client_data, attestation_object=attestation
            ),
        )
        data = _server(party, client_data).register_complete(_state(challenge), registration)
        return NewCredential(
            credential_id=credential.credential_id,
            credential_data=bytes(credential),
            counter=data.counter,
            is_backed_up=data.is_backed_up(),
        )


def _check_credential(credential: AttestedCredentialData) -> None:
    """Raise for a credential that could not sign in later; fido2 accepts any."""
    if credential.public_key.ALGORITHM not in ALGORITHMS:
        raise InvalidResponse("the algorithm is none of those that were offered")
    if len(credential.credential_id) not in _CREDENTIAL_ID_BYTES:
        raise InvalidResponse("the credential id has an invalid length")
    if len(credential) > _CREDENTIAL_ID_BYTES.stop + _MAX_PUBLIC_KEY:
        raise InvalidResponse("the public key is too long")


def verify_assertion(
    response: AssertionBytes, challenge: bytes, party: RelyingParty, credential_data: bytes
) -> CredentialUse:
    """Return what the signature of a stored credential says. Raises `InvalidResponse`."""
    with _every_error_is_invalid():
        data = AuthenticatorData(response.authenticator_data)
        client_data = CollectedClientData(response.client_data)
        assertion = AuthenticationResponse(
            raw_id=response.credential_id,
            response=AuthenticatorAssertionResponse(
                client_data=client_data,
                authenticator_data=data,
                signature=response.signature,
                user_handle=response.user_handle,
            ),
        )
        credentials = [AttestedCredentialData(credential_data)]
        _server(party, client_data).authenticate_complete(_state(challenge), credentials, assertion)
        return CredentialUse(counter=data.counter, is_backed_up=data.is_backed_up())


def _server(party: RelyingParty, client_data: CollectedClientData) -> Fido2Server:
    """Return fido2's checks: type, origin, challenge, host name, presence, verification."""
    if client_data.cross_origin:
        raise InvalidResponse("the page was in a frame of another site")
    # The origin exactly: fido2's own rule also accepts every subdomain, and every port.
    return Fido2Server(
        PublicKeyCredentialRpEntity(name="shardlab", id=party.id),
        verify_origin=lambda origin: origin == party.origin,
    )


def _state(challenge: bytes) -> dict[str, object]:
    """Return what fido2 compares a response with."""
    return {
        "challenge": websafe_encode(challenge),
        "user_verification": UserVerificationRequirement.REQUIRED,
    }
