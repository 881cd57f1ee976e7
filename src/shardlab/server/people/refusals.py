"""Why a request of a person is refused, in words that the person reads."""

from __future__ import annotations


class Refusal(Exception):
    """What was sent cannot be used; `field` is the form field it belongs to, if any."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class NotThere(Exception):
    """No such row, or none that this person may see: the two must not be told apart."""
