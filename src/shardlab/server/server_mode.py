"""Server mode: what must be true before `shardlab serve --accounts` starts."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from shardlab.errors import InvalidServerOption, SecretMissing, WeakSecret
from shardlab.server.settings import LOOPBACK_HOSTS, ServerSettings

SECRET_VARIABLE = "SHARDLAB_SECRET"
MIN_SECRET_LENGTH = 32
_MIN_DIFFERENT = 10  # characters
# Words of secrets that people copy from examples.
_EXAMPLE_WORDS = (
    *("change-me", "changeme", "change_me", "replace", "default", "example", "insecure"),
    *("password", "secret", "shardlab"),
)
# Of 100000 random texts with 32 hexadecimal digits the least has 42; rows of keys have 15.
_MIN_ENTROPY_BITS = 40
_ROWS = ("0123456789", "9abcdefghijklmnopqrstuvwxyz", "qwertyuiop", "asdfghjkl", "zxcvbnm")
_ROW_STEPS = frozenset(a + b for row in _ROWS for a, b in (*pairwise(row), *pairwise(row[::-1])))
_MAX_SECRET_BYTES = 4096
_MAKE_ONE = "python3 -c 'import secrets; print(secrets.token_urlsafe(48))'"


def read_secret(secret_file: Path | None, environ: Mapping[str, str] | None = None) -> str:
    """Return the secret from a file, or from the environment. Raises `SecretMissing`."""
    variables = os.environ if environ is None else environ
    if secret_file is None:
        secret = variables.get(SECRET_VARIABLE, "").strip()
        where = f"the environment variable {SECRET_VARIABLE}"
    else:
        where = str(secret_file)
        try:
            with secret_file.open("rb") as file:
                secret = file.read(_MAX_SECRET_BYTES).decode("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise SecretMissing(
                f"The file with the secret cannot be read: {reason}.",
                where=where,
                fix=f"write a random text into it: {_MAKE_ONE} > FILE; chmod 600 FILE",
            ) from None
    if not secret:
        raise SecretMissing(
            "Server mode needs a secret: it signs sessions, forms and join links.",
            where=where,
            fix=f"make one, keep it, and pass --secret-file FILE: {_MAKE_ONE} > FILE",
        )
    check_secret(secret, where)
    return secret


def read_metrics_token(file: Path) -> str:
    """Return the token that the metrics need. Raises `InvalidServerOption` or `WeakSecret`."""
    try:
        token = file.read_bytes()[:_MAX_SECRET_BYTES].decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        raise InvalidServerOption(
            f"The file with the token of the metrics cannot be read: {reason}.",
            where=f"--metrics-token-file {file}",
            fix=f"write a random text into it: {_MAKE_ONE} > FILE; chmod 600 FILE",
        ) from None
    check_secret(token, str(file))
    return token


def check_secret(secret: str, where: str) -> None:
    """Raise `WeakSecret` for a secret that can be guessed; it is never part of the message."""
    reason = ""
    lowered = secret.lower()
    if len(secret) < MIN_SECRET_LENGTH:
        reason = f"it has {len(secret)} characters; {MIN_SECRET_LENGTH} are the least"
    elif len(set(secret)) < _MIN_DIFFERENT:
        reason = f"it has only {len(set(secret))} different characters"
    elif any(word in lowered for word in _EXAMPLE_WORDS):
        reason = "it looks like one from an example"
    elif estimate_entropy_bits(secret) < _MIN_ENTROPY_BITS:
        reason = "it repeats itself, or follows the order of digits, letters or keys"
    if reason:
        raise WeakSecret(
            f"The secret can be guessed: {reason}.",
            where=where,
            fix=f"use a random one: {_MAKE_ONE}",
        )


def estimate_entropy_bits(secret: str) -> float:
    """Return the bits of the characters that do not follow from those before them.

    A character follows if it repeats the one before, is its neighbor among digits, letters or
    keys, or if the same two came before. Each other one counts with the entropy of its text.

    >>> round(estimate_entropy_bits("0123456789abcdef" * 2))
    4
    >>> round(estimate_entropy_bits("ac8e0f0d35b85fdc82bb3f7f1a4a70d9"))
    98
    """
    pairs: set[str] = set()
    n_unpredictable = 0
    for before, character in pairwise(secret.lower()):
        pair = before + character
        n_unpredictable += before != character and pair not in pairs and pair not in _ROW_STEPS
        pairs.add(pair)
    shares = [secret.count(character) / len(secret) for character in sorted(set(secret))]
    return n_unpredictable * -sum(share * math.log2(share) for share in shares)


def check_settings(settings: ServerSettings) -> None:
    """Raise `InvalidServerOption` for options that do not fit together."""
    is_loopback = settings.host in (*LOOPBACK_HOSTS, "::1")
    if not is_loopback and not settings.public_hosts:
        raise InvalidServerOption(
            "No host name is served to other machines.",
            where=f"--host {settings.host} without --public-host",
            fix="name what people type into the browser: --public-host lab.example.org",
        )
    for name in settings.public_hosts:
        if "/" in name or not name.strip() or name != name.strip() or "*" in name:
            raise InvalidServerOption(
                f"'{name}' is not a host name.",
                where="--public-host",
                fix="write the host alone, with its port if it is not the usual one: "
                "lab.example.org or lab.example.org:8443",
            )


def check_confinement(data_folder: Path) -> None:
    """Raise `SandboxLevelUnavailable` unless submissions are confined at level A.

    A process without JAX is attacked here, which takes a fraction of a second; the workers do the
    same once more with what they really run.
    """
    from shardlab.sandbox.pool import open_sandbox_pool
    from shardlab.sandbox.process import ForkServerConfig, PoolConfig
    from shardlab.sandbox.self_test import ROLE

    entry_points = {ROLE: "shardlab.sandbox.self_test"}
    config = PoolConfig(fork_servers=(ForkServerConfig(entry_points=entry_points),))
    data_folder.mkdir(0o700, parents=True, exist_ok=True)
    with open_sandbox_pool(config, hidden_paths=[data_folder], at_least="A"):
        pass
