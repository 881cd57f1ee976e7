"""JSON that somebody else wrote, read piece by piece, so that no piece can ask for much memory.

>>> text = JsonScanner('{"a": [1, 2], "b": 3}', "here")
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
_PLAIN = re.compile(r'[ \t\r\n]*"([^"\\\x00-\x1f]*)"')  # a text without escapes
_LONGEST = 4_096  # characters of one value


class JsonScanner:
    """A cursor over JSON text: each `take...` takes the thing that comes next, or raises."""

    def __init__(self, text: str, where: str, first_byte: int = 0) -> None:
        self.text = text
        self.where = where
        self.position = 0
        self._first_byte = first_byte

    def take_pairs(self, most: int = 1_000_000) -> Iterator[str]:
        """Yield the keys of a table, each to be followed by taking its value."""
        self._take("{", "A table `{...}` was expected here.")
        seen: set[str] = set()
        if self._next_is("}"):
            self.position += 1
            return
        while True:
            start = self.position
            key = self.take_text()
            if key in seen:
                raise self.error(f"The key {key!r:.200} is there twice.", start)
            if len(seen) == most:
                raise self.error(f"The table has more than {most:,} keys.", start)
            seen.add(key)
            self._take(":", "':' was expected here.")
            yield key
            if not self._next_is(","):
                break
            self.position += 1
        self._take("}", "',' or '}' was expected here.")

    def take_text(self) -> str:
        """Take a text in quotes."""
        if plain := _PLAIN.match(self.text, self.position):
            self.position = plain.end()
            return plain[1]
        if not self._next_is('"'):
            raise self.error('A text in quotes "..." was expected here.')
        try:
            value, self.position = _DECODER.raw_decode(self.text, self.position)
        except ValueError as error:
            raise self.error(f"This is no JSON: {_reason(error)}.", _place(error, 0)) from None
        return str(value)

    def take_value(self, most: int = _LONGEST) -> Any:
        """Take whatever comes next, if it has no more than that many characters."""
        start = self._skip_space()
        piece = self.text[start : start + most]
        try:
            value, n = _DECODER.raw_decode(piece)
        except (ValueError, RecursionError) as error:
            if start + most < len(self.text) and not isinstance(error, _Repeated):
                raise self.error(f"This is no JSON, or longer than {most:,} characters.") from None
            raise self.error(f"This is no JSON: {_reason(error)}.", _place(error, start)) from None
        self.position = start + n
        return value

    def take_end(self) -> None:
        """Take nothing but spaces up to the end."""
        if self._skip_space() < len(self.text):
            raise self.error("The table has ended, and something follows it.")

    def error(self, what: str, position: int | None = None) -> InvalidModel:
        """Return an error about the place that comes next, or another."""
        at = self.position if position is None else position
        shown = self.text[at : at + 40]
        found = f" There is {shown!r}." if shown else " The text ends."
        return InvalidModel(what + found, where=self.place(at), fix=_FIX)

    def place(self, position: int) -> str:
        """Return a position in words, file and byte, after the spaces that may be there."""
        while self.text[position : position + 1] in (" ", "\t", "\r", "\n"):
            position += 1
        byte = self._first_byte + len(self.text[:position].encode("utf-8", "surrogatepass"))
        return f"{self.where}, byte {byte:,}"

    def _take(self, token: str, otherwise: str) -> None:
        if not self._next_is(token):
            raise self.error(otherwise)
        self.position += 1

    def _next_is(self, token: str) -> bool:
        # most files have no spaces there
        if self.text.startswith(token, self.position):
            return True
        return self.text.startswith(token, self._skip_space())

    def _skip_space(self) -> int:
        found = _SPACE.match(self.text, self.position)
        assert found is not None
        self.position = found.end()
        return self.position


_FIX = "download or write the file again."


class _Repeated(ValueError):
    """A key that stands twice in a table."""


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a table of JSON, which must not name a key twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise _Repeated(f"the key {twice!r:.200} is there twice")
    return found


def _reason(error: ValueError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "too many brackets inside brackets"
    if isinstance(error, json.JSONDecodeError):
        return error.msg.removesuffix(" at").lower()
    return str(error) if isinstance(error, _Repeated) else "a number has too many digits"


def _place(error: ValueError | RecursionError, start: int) -> int:
    return start + (error.pos if isinstance(error, json.JSONDecodeError) else 0)


_DECODER = json.JSONDecoder(object_pairs_hook=reject_duplicate_keys)
