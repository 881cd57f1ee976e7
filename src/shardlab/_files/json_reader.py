"""JSON of unknown origin, read value by value, so that no value can allocate much memory.

>>> text = JsonScanner('{"a": [1, 2], "b": 3}', "file.json")
>>> {key: text.take_value() for key in text.take_pairs()}
{'a': [1, 2], 'b': 3}
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from shardlab.errors import InvalidModel

_SPACE = re.compile(r"[ \t\r\n]*")
_UNESCAPED_STRING = re.compile(r'[ \t\r\n]*"([^"\\\x00-\x1f]*)"')
_MAX_VALUE_LENGTH = 4_096  # characters


class JsonScanner:
    """A cursor over JSON text: each `take...` consumes the next value, or raises."""

    def __init__(self, text: str, where: str, first_byte: int = 0) -> None:
        self.text = text
        self.where = where
        self.position = 0
        self._first_byte = first_byte

    def take_pairs(self, max_keys: int = 1_000_000) -> Iterator[str]:
        """Yield the keys of an object; the caller takes the value after each key."""
        self._expect("{", "An object `{...}` was expected here.")
        keys: set[str] = set()
        if self._next_is("}"):
            self.position += 1
            return
        while True:
            start = self.position
            key = self.take_text()
            if key in keys:
                raise self.error(f"The key {key!r:.200} appears twice.", start)
            if len(keys) == max_keys:
                raise self.error(f"The object has more than {max_keys:,} keys.", start)
            keys.add(key)
            self._expect(":", "':' was expected here.")
            yield key
            if not self._next_is(","):
                break
            self.position += 1
        self._expect("}", "',' or '}' was expected here.")

    def take_text(self) -> str:
        """Take a string."""
        # Headers of large models have a million short strings: the decoder only sees escapes.
        if plain := _UNESCAPED_STRING.match(self.text, self.position):
            self.position = plain.end()
            return plain[1]
        if not self._next_is('"'):
            raise self.error('A string "..." was expected here.')
        try:
            value, self.position = _DECODER.raw_decode(self.text, self.position)
        except ValueError as error:
            raise self.error(
                f"This is not JSON: {_decode_failure_text(error)}.", _failure_position(error, 0)
            ) from None
        return str(value)

    def take_value(self, max_characters: int = _MAX_VALUE_LENGTH) -> Any:
        """Take the next value, if it has at most `max_characters` characters."""
        start = self._skip_space()
        # The decoder sees only this window, so it cannot build a value larger than the limit.
        window = self.text[start : start + max_characters]
        try:
            value, length = _DECODER.raw_decode(window)
        except (ValueError, RecursionError) as error:
            if start + max_characters < len(self.text) and not isinstance(error, _DuplicateKey):
                raise self.error(
                    f"This is not JSON, or longer than {max_characters:,} characters."
                ) from None
            raise self.error(
                f"This is not JSON: {_decode_failure_text(error)}.", _failure_position(error, start)
            ) from None
        self.position = start + length
        return value

    def take_end(self) -> None:
        """Check that only spaces follow."""
        if self._skip_space() < len(self.text):
            raise self.error("There is text after the end of the object.")

    def error(self, message: str, position: int | None = None) -> InvalidModel:
        """Return an error about the next value, or about another position."""
        if position is None:
            position = self.position
        excerpt = self.text[position : position + 40]
        actual = f" Found {excerpt!r}." if excerpt else " The text ends here."
        return InvalidModel(message + actual, where=self.position_text(position), fix=_FIX)

    def position_text(self, position: int) -> str:
        """Return file and byte offset of a position, skipping leading spaces."""
        while self.text[position : position + 1] in (" ", "\t", "\r", "\n"):
            position += 1
        byte = self._first_byte + len(self.text[:position].encode("utf-8", "surrogatepass"))
        return f"{self.where}, byte {byte:,}"

    def _expect(self, token: str, message: str) -> None:
        if not self._next_is(token):
            raise self.error(message)
        self.position += 1

    def _next_is(self, token: str) -> bool:
        # Most files have no spaces there: this saves a regular expression per token.
        if self.text.startswith(token, self.position):
            return True
        return self.text.startswith(token, self._skip_space())

    def _skip_space(self) -> int:
        match = _SPACE.match(self.text, self.position)
        assert match is not None
        self.position = match.end()
        return self.position


_FIX = "download the file again, or fix it at this byte."


class _DuplicateKey(ValueError):
    """An object has the same key twice."""


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raises `ValueError` if it has a key twice (`json` keeps the last)."""
    table = dict(pairs)
    if len(table) < len(pairs):
        duplicate = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise _DuplicateKey(f"the key {duplicate!r:.200} appears twice")
    return table


def _decode_failure_text(error: ValueError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "too many brackets inside brackets"
    if isinstance(error, json.JSONDecodeError):
        return error.msg.removesuffix(" at").lower()
    return str(error) if isinstance(error, _DuplicateKey) else "a number has too many digits"


def _failure_position(error: ValueError | RecursionError, start: int) -> int:
    return start + (error.pos if isinstance(error, json.JSONDecodeError) else 0)


_DECODER = json.JSONDecoder(object_pairs_hook=reject_duplicate_keys)
