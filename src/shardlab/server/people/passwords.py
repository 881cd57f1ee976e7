"""Passwords: which are accepted, how they are hashed, and how a guess is compared."""

from __future__ import annotations

import threading
import unicodedata

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError

from shardlab.server.people.refusals import Refusal

MIN_LENGTH = 10
# Argon2 reads every byte, so a password of megabytes would be an attack on the processor.
MAX_BYTES = 512

# The most common passwords of ten characters and more in public leaks, and what people type when
# they are told that theirs is too short. Compared without case and without trailing digits.
_COMMON_TEXT = """
    1234567890 0123456789 12345678910 123456789a 1q2w3e4r5t 1qaz2wsx3edc q1w2e3r4t5 qwertyuiop
    qwerty12345 qwerty123456 asdfghjkl1 zxcvbnm123 password password1 passwordpassword mypassword
    passw0rd1 p@ssword p@ssw0rd iloveyou iloveyou12 letmeinplease welcome welcome123 changeme
    changemenow administrator adminadmin superman sunshine princess football baseball basketball
    abcdefghij abcd1234567 abc1234567 aaaaaaaaaa qazwsxedcrf 1q2w3e4r5t6y michelle jennifer
    computer internet starwars1977 correcthorsebatterystaple trustno1trustno1 secretsecret
    shardlab shardlabshardlab shard_map
"""
_COMMON = frozenset(_COMMON_TEXT.split())
_COMMON_STEMS = frozenset(word.rstrip("0123456789!.") or word for word in _COMMON)


def normalize_password(password: str) -> str:
    """Return the password in one Unicode form, so that two keyboards type the same one."""
    return unicodedata.normalize("NFKC", password)


def check_password_rules(password: str, name: str) -> None:
    """Raise `Refusal` for a password that is too short, too long, common, or the name."""
    if len(password) < MIN_LENGTH:
        raise Refusal(f"Use at least {MIN_LENGTH} characters.", field="password")
    if len(password.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise Refusal(f"Use at most {MAX_BYTES} bytes.", field="password")
    folded = password.casefold()
    stem = folded.rstrip("0123456789!.")
    if folded in _COMMON or stem in _COMMON_STEMS or len(set(folded)) < 4:
        raise Refusal("This password is among the first that an attacker tries.", field="password")
    if name and (folded == name.casefold() or stem == name.casefold()):
        raise Refusal("The password must not be the name.", field="password")


class PasswordHashing:
    """Hashes and compares passwords with argon2id.

    The default cost is OWASP's (2025): 19 MiB and two passes. At most two hashes are computed at a
    time, so that many sign-ins at once use time and not memory.
    """

    def __init__(self, *, time_cost: int = 2, memory_kib: int = 19 * 1024) -> None:
        self._hasher = PasswordHasher(time_cost=time_cost, memory_cost=memory_kib, parallelism=1)
        self._slots = threading.BoundedSemaphore(2)
        self._unknown_hash = self.hash("the password of nobody")

    def hash(self, password: str) -> str:
        """Return the hash, with its parameters and salt."""
        with self._slots:
            return self._hasher.hash(normalize_password(password))

    def is_correct(self, password_hash: str | None, password: str) -> bool:
        """Return whether a guess is right; for None, an unknown name, after the same work."""
        if len(password.encode("utf-8", "surrogatepass")) > MAX_BYTES:
            password, password_hash = "", None
        try:
            with self._slots:
                self._hasher.verify(
                    password_hash or self._unknown_hash, normalize_password(password)
                )
        except (VerifyMismatchError, VerificationError, InvalidHashError):
            return False
        return password_hash is not None

    def is_outdated(self, password_hash: str) -> bool:
        """Return whether the hash was computed with other parameters than today's."""
        return self._hasher.check_needs_rehash(password_hash)
