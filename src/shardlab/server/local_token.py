"""The token with which scripts of this machine call the API in local mode."""

from __future__ import annotations

import hmac
import os
import re
import secrets
from pathlib import Path

from starlette.datastructures import Headers

from shardlab.server.identity import Identify, Identity
from shardlab.server.person import LOCAL_PERSON

TOKEN_FILE = "api-token"
_PREFIX = "shardlab_local_"
_FORM = re.compile(rf"{_PREFIX}[\w-]{{43}}")  # of token_urlsafe(32)


def read_local_token(data_folder: Path) -> str:
    """Return the token in the data folder; a missing or damaged file is written anew.

    Only its owner can read the file: whoever can read it could open the database as well.
    """
    path = data_folder / TOKEN_FILE
    try:
        token = path.read_text("utf-8").strip()
        is_private = path.stat().st_mode & 0o077 == 0
    except (OSError, UnicodeDecodeError):
        token, is_private = "", False
    if is_private and _FORM.fullmatch(token):
        return token
    token = _PREFIX + secrets.token_urlsafe(32)
    new_file = path.with_name(f"{TOKEN_FILE}.{secrets.token_hex(4)}")
    # With its mode from the start: there is no moment in which others could open it.
    descriptor = os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f"{token}\n")
    new_file.replace(path)
    return token


def identify_locally(token: str) -> Identify:
    """Return the lookup of local mode: one person, in a browser or with the token."""

    def identify(headers: Headers) -> Identity:
        authorization = headers.get("authorization")
        if authorization is None:
            return Identity(person=LOCAL_PERSON)
        scheme, _, text = authorization.partition(" ")
        is_valid = hmac.compare_digest(
            text.strip().encode("utf-8", "surrogatepass"), token.encode()
        )
        if scheme.lower() != "bearer" or not is_valid:
            return Identity(is_script=True)
        return Identity(person=LOCAL_PERSON, is_script=True)

    return identify
