"""Errors of the database that pass: it restarts, or is out of reach."""

from __future__ import annotations

from sqlalchemy.exc import InterfaceError, InternalError, OperationalError, TimeoutError

# The connection was refused or ended, a lock or a connection was waited for in vain.
_PASSING_ERRORS = (OperationalError, InternalError, InterfaceError, TimeoutError)


def is_passing_error(error: BaseException) -> bool:
    """Return whether the same request may succeed a little later."""
    return isinstance(error, _PASSING_ERRORS)


def first_line(error: BaseException) -> str:
    """Return what an error of the database says, for a line of the log."""
    lines = str(getattr(error, "orig", error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__
