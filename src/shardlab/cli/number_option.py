"""Whole numbers as people type them after an option."""

from __future__ import annotations

from typing import overload

import click


@overload
def whole_number(name: str, text: str) -> int: ...
@overload
def whole_number(name: str, text: None) -> None: ...
@overload
def whole_number(name: str, text: str | None) -> int | None: ...
def whole_number(name: str, text: str | None) -> int | None:
    """Return a whole number, however a person groups its digits.

    >>> whole_number("chips", "4,096"), whole_number("chips", "4_096"), whole_number("batch", None)
    (4096, 4096, None)
    """
    if text is None:
        return None
    digits = text.replace(",", "").replace("_", "").strip()
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 18 or not int(digits):
        raise click.UsageError(f"--{name} {text}: a whole number from 1 on, such as 1024.")
    return int(digits)
