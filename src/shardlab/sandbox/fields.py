"""Strict reading of JSON objects that another process has sent.

Each field is read once, with its exact type and a limit. A missing field, a field of another type
and a field that no reader asked for raise `InvalidFrame`; nothing else is ever raised:

>>> fields = Fields({"line": 3, "text": "x = 1"}, "error")
>>> fields.integer("line"), fields.text("text")
(3, 'x = 1')
>>> fields.finish()
>>> Fields({"line": "3"}, "error").integer("line")
Traceback (most recent call last):
shardlab.sandbox.frame.InvalidFrame: error: 'line' is not an integer in range
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardlab.sandbox.frame import InvalidFrame

MAX_TEXT = 100_000
MAX_ITEMS = 1000
MAX_INTEGER = (1 << 62) - 1  # sums of a few of these still print and store as integers


class Fields:
    """The fields of one JSON object; `finish` checks that none is left over."""

    def __init__(self, data: Any, name: str) -> None:
        if not isinstance(data, Mapping):
            raise InvalidFrame(f"{name}: not an object")
        self._unread, self._name = dict(data), name

    def has(self, key: str) -> bool:
        return key in self._unread

    def value(self, key: str) -> Any:
        """Return a field as it is, for callers that check it themselves."""
        if key not in self._unread:
            raise InvalidFrame(f"{self._name}: {key!r} is missing")
        return self._unread.pop(key)

    def text(self, key: str, max_length: int = MAX_TEXT) -> str:
        value = self.value(key)
        if not isinstance(value, str) or len(value) > max_length:
            raise InvalidFrame(f"{self._name}: {key!r} is not a text, or too long")
        return value

    def integer(self, key: str, maximum: int = MAX_INTEGER) -> int:
        """Return a field that is an integer from 0 to `maximum`."""
        return self._check_integer(self.value(key), key, maximum)

    def optional_integer(self, key: str, maximum: int = MAX_INTEGER) -> int | None:
        value = self.value(key)
        return None if value is None else self._check_integer(value, key, maximum)

    def integers(self, key: str, maximum: int = MAX_INTEGER) -> tuple[int, ...]:
        return tuple(self._check_integer(item, key, maximum) for item in self.items(key))

    def number(self, key: str) -> float:
        """Return a field that is a finite number, and not negative."""
        value = self.value(key)
        if type(value) not in (int, float) or not 0 <= value < float("inf"):
            raise InvalidFrame(f"{self._name}: {key!r} is not a number in range")
        return float(value)

    def boolean(self, key: str) -> bool:
        value = self.value(key)
        if type(value) is not bool:
            raise InvalidFrame(f"{self._name}: {key!r} is not true or false")
        return value

    def items(self, key: str, max_items: int = MAX_ITEMS) -> list[Any]:
        value = self.value(key)
        if not isinstance(value, list) or len(value) > max_items:
            raise InvalidFrame(f"{self._name}: {key!r} is not a list, or too long")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        texts = tuple(self.items(key))
        if not all(isinstance(text, str) and len(text) <= MAX_TEXT for text in texts):
            raise InvalidFrame(f"{self._name}: {key!r} is not a list of texts")
        return texts

    def objects(self, key: str, name: str, max_items: int = MAX_ITEMS) -> list[Fields]:
        return [Fields(item, name) for item in self.items(key, max_items)]

    def optional_object(self, key: str, name: str) -> Fields | None:
        value = self.value(key)
        return None if value is None else Fields(value, name)

    def finish(self) -> None:
        """Raise `InvalidFrame` if there are fields that were not read."""
        if self._unread:
            unknown = ", ".join(sorted(map(repr, self._unread)))
            raise InvalidFrame(f"{self._name}: unknown fields {unknown[:200]}")

    def _check_integer(self, value: Any, key: str, maximum: int) -> int:
        # Not isinstance: JSON's true is an int in Python, and would count as 1.
        if type(value) is not int or not 0 <= value <= maximum:
            raise InvalidFrame(f"{self._name}: {key!r} is not an integer in range")
        return value
