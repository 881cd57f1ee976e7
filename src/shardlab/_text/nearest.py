"""Suggests the nearest of several names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest_name(name: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the known name that `name` is most likely a slip of."""
    by_lower_case = {candidate.lower(): candidate for candidate in known}
    matches = get_close_matches(name.lower(), by_lower_case, n=1, cutoff=cutoff)
    return by_lower_case[matches[0]] if matches else None
