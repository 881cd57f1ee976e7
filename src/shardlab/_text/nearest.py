"""Suggestions for misspelled names: the one use of difflib in shardlab.

>>> unknown_name_text("hardware", "h1000", ["a100", "h100"])
"Unknown hardware 'h1000'. Did you mean 'h100'? Known: a100, h100."
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import PurePath

from shardlab.errors import short_repr

_MAX_LENGTH = 200  # characters compared; difflib takes quadratic time in the length


def nearest_name(name: str, names: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the name that `name` is most likely a misspelling of, ignoring case.

    >>> nearest_name("Modle", ["data", "model"]), nearest_name("x", ["data", "model"])
    ('model', None)
    """
    by_lower_case: dict[str, str] = {}
    for candidate in names:
        by_lower_case.setdefault(candidate.lower(), candidate)
    # The default is 0.5, not difflib's 0.6: in names this short one wrong letter costs much.
    matches = get_close_matches(name[:_MAX_LENGTH].lower(), by_lower_case, n=1, cutoff=cutoff)
    return by_lower_case[matches[0]] if matches else None


def nearest_file_name(name: str, names: Iterable[str]) -> str | None:
    """Return the file that `name` is most likely a misspelling of.

    A common suffix says nothing, so it is compared only if the names without it are close.

    >>> nearest_file_name("modle.py", ["model.py"]), nearest_file_name("nofile.py", ["syn.py"])
    ('model.py', None)
    """
    stem = PurePath(name).stem.lower()
    close = [other for other in names if nearest_name(stem, [PurePath(other).stem], 0.6)]
    return nearest_name(name, close)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return "Did you mean 'x'?", or an empty string if no name is close.

    >>> did_you_mean("modle", ["data", "model"])
    "Did you mean 'model'?"
    """
    nearest = nearest_name(name, names)
    return "" if nearest is None else f"Did you mean {nearest!r}?"


def unknown_name_text(kind: str, name: object, names: Iterable[str]) -> str:
    """Return the message for an unknown name: what it is, the nearest name, and all names.

    >>> unknown_name_text("mesh axis", "batch", ["data", "model"])
    "Unknown mesh axis 'batch'. Known: data, model."
    """
    names = list(names)
    suggestion = did_you_mean(name, names) if isinstance(name, str) else ""
    listing = f"Known: {', '.join(names) or 'none'}."
    return " ".join(filter(None, (f"Unknown {kind} {short_repr(name)}.", suggestion, listing)))
