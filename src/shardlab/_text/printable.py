"""Makes untrusted text safe to show: no character in it moves a cursor or reorders a line.

Everything that a submission prints, raises or names reaches terminals and reports through here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def printable_text(text: str) -> str:
    """Return text on one line and without control characters.

    >>> printable_text("a\\x1b[31mb\\tc\\u202ed")
    'a?[31mb c?d'
    """
    return "".join(_printable_character(character) for character in text)


def printable_lines(text: str) -> str:
    """Return text without control characters; line breaks stay.

    >>> printable_lines("a\\x9b2J\\r\\nb")
    'a?2J\\nb'
    """
    return "\n".join(map(printable_text, text.replace("\r\n", "\n").split("\n")))


def printable_data(value: Any) -> Any:
    """Return plain data with every string in it made printable.

    >>> printable_data({"values": ["1\\x07", 2]})
    {'values': ['1?', 2]}
    """
    if isinstance(value, str):
        return printable_lines(value)
    if isinstance(value, Mapping):
        return {printable_data(key): printable_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [printable_data(item) for item in value]
    return value


def _printable_character(character: str) -> str:
    if character in "\t\r\n":
        return " "
    # `isprintable` is False for control, format (bidirectional marks) and surrogate characters.
    return character if character.isprintable() else "?"
