"""Suggests the nearest of several names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` is most likely a slip of."""
    close = get_close_matches(name.lower(), {each.lower(): each for each in known}, n=1, cutoff=0.5)
    return next((each for each in known if close and each.lower() == close[0]), None)
