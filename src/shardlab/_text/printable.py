"""Text of an answer made fit to be shown: no character in it moves a cursor or turns a line round.

What an answer prints, raises or names itself reaches terminals and reports through this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def printable_text(text: str) -> str:
    """Return text on one line and without control characters.

    >>> printable_text("a\\x1b[31mb\\tc\\u202ed")
    'a?[31mb c?d'
    """
    return "".join(_printable(letter) for letter in text)


def printable_lines(text: str) -> str:
    """Return text without control characters, its lines as they are.

    >>> printable_lines("a\\x9b2J\\r\\nb")
    'a?2J\\nb'
    """
    return "\n".join(map(printable_text, text.replace("\r\n", "\n").split("\n")))


def printable_data(value: Any) -> Any:
    """Return plain data with every text in it made fit to be shown.

    >>> printable_data({"holds": ["1\\x07", 2]})
    {'holds': ['1?', 2]}
    """
    if isinstance(value, str):
        return printable_lines(value)
    if isinstance(value, Mapping):
        return {printable_data(key): printable_data(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [printable_data(each) for each in value]
    return value


def _printable(letter: str) -> str:
    if letter in "\t\r\n":
        return " "
    return letter if letter.isprintable() else "?"
