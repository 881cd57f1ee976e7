"""An authenticator in Python: it makes WebAuthn's bytes itself, without the server's library."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from dataclasses import dataclass, field

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

USER_PRESENT, USER_VERIFIED, BACKUP_ELIGIBLE, BACKED_UP, ATTESTED = 0x01, 0x04, 0x08, 0x10, 0x40
VERIFIED = USER_PRESENT | USER_VERIFIED
AAGUID = bytes(16)


def to_base64(content):
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def from_base64(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def to_cbor(value):
    """Return a value in CBOR (RFC 8949): integers, bytes, text and maps are all that is needed."""
    if isinstance(value, dict):
        pairs = b"".join(to_cbor(key) + to_cbor(item) for key, item in value.items())
        return _head(5, len(value)) + pairs
    if isinstance(value, int):
        return _head(0, value) if value >= 0 else _head(1, -1 - value)
    kind, content = (3, value.encode()) if isinstance(value, str) else (2, value)
    return _head(kind, len(content)) + content


def _head(kind, number):
    if number < 24:
        return bytes([kind << 5 | number])
    size = 1 if number < 1 << 8 else 2 if number < 1 << 16 else 4
    return bytes([kind << 5 | {1: 24, 2: 25, 4: 26}[size]]) + number.to_bytes(size, "big")


@dataclass
class SoftwareAuthenticator:
    """One passkey. The arguments of its methods are what a faulty or hostile one would change."""

    origin: str
    rp_id: str = "localhost"
    algorithm: int = -7
    counter: int = 0  # of the last signature; 0 does not count, as synchronized passkeys
    credential_id: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    user_handle: bytes = b""

    def __post_init__(self):
        is_edwards = self.algorithm == -8
        self.key = (
            ed25519.Ed25519PrivateKey.generate()
            if is_edwards
            else ec.generate_private_key(ec.SECP256R1())
        )

    def cose_key(self):
        """Return the public key as RFC 9053 writes it."""
        public = self.key.public_key()
        if self.algorithm == -8:
            return {1: 1, 3: -8, -1: 6, -2: public.public_bytes_raw()}
        numbers = public.public_numbers()
        x, y = numbers.x.to_bytes(32, "big"), numbers.y.to_bytes(32, "big")
        return {1: 2, 3: self.algorithm, -1: 1, -2: x, -3: y}

    def client_data(self, kind, options, changes):
        fields = {"type": kind, "challenge": options["challenge"], "origin": self.origin}
        return json.dumps({**fields, "crossOrigin": False, **changes}).encode()

    def authenticator_data(self, flags, counter, rp_id=None, credential=b""):
        rp_hash = hashlib.sha256((rp_id or self.rp_id).encode()).digest()
        return rp_hash + bytes([flags]) + counter.to_bytes(4, "big") + credential

    def create(self, options, *, flags=VERIFIED, rp_id=None, **client_changes):
        """Return the body that a page sends to add this passkey."""
        self.user_handle = from_base64(options["user_handle"])
        credential = AAGUID + len(self.credential_id).to_bytes(2, "big") + self.credential_id
        credential += to_cbor(self.cose_key())
        data = self.authenticator_data(flags | ATTESTED, self.counter, rp_id, credential)
        client_data = self.client_data("webauthn.create", options, client_changes)
        attestation = to_cbor({"fmt": "none", "attStmt": {}, "authData": data})
        return {
            "label": "laptop",
            "client_data": to_base64(client_data),
            "attestation_object": to_base64(attestation),
        }

    def sign(self, options, *, flags=VERIFIED, counter=None, rp_id=None, **client_changes):
        """Return the body that a page sends to sign in with this passkey."""
        if counter is None:
            counter = self.counter + 1 if self.counter else 0
        self.counter = counter
        data = self.authenticator_data(flags, counter, rp_id)
        client_data = self.client_data("webauthn.get", options, client_changes)
        message = data + hashlib.sha256(client_data).digest()
        is_edwards = self.algorithm == -8
        signature = (
            self.key.sign(message)
            if is_edwards
            else self.key.sign(message, ec.ECDSA(hashes.SHA256()))
        )
        return {
            "credential_id": to_base64(self.credential_id),
            "client_data": to_base64(client_data),
            "authenticator_data": to_base64(data),
            "signature": to_base64(signature),
            "user_handle": to_base64(self.user_handle),
        }
