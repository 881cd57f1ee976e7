"""Random tokens. The person gets the token; the database gets its hash.

The tokens have 256 random bits, so a fast hash is enough: there is nothing to guess. A lookup by
hash also compares in a time that says nothing about the token.
"""

from __future__ import annotations

import hashlib
import secrets

API_TOKEN_PREFIX = "shardlab_"  # so that scanners of public repositories recognize a leaked one


def new_token() -> str:
    """Return a new random token."""
    return secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """Return what is stored of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
