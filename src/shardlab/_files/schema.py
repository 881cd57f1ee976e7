"""Tables that people write: which keys there are, what may stand in each, and what it means.

One home, so that the reader, its messages and the page about the format share their words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardlab._text.nearest import nearest_name
from shardlab.errors import PlanError, short_repr


@dataclass(frozen=True, kw_only=True)
class Field:
    """One key: what must stand there, in words and as a question, and what it is for."""

    wanted: str
    fits: Callable[[Any], bool]
    meaning: str
    is_required: bool = False


def is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


def is_count(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 63


def is_text_list(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def check_fields(
    data: Any, known: Mapping[str, Field], where: str, kind: type[PlanError], place: str = ""
) -> Mapping[str, Any]:
    """Return a table whose keys and values are all as its settings want them.

    `place` is the table's own key in the file, as `architecture`.
    """
    inside = f"{where}, {place}" if place else where
    if not isinstance(data, Mapping):
        raise kind(f"{_shown(data)} is not a table.", where=inside, fix="a table.")
    for key, value in data.items():
        if key not in known:
            raise kind(
                f"There is no key {short_repr(key)} here.", where=inside, fix=_other(key, known)
            )
        if not known[key].fits(value):
            path = f"{place}.{key}" if place else key
            what = f"{key!r} is {_shown(value)}."
            raise kind(what, where=f"{where}, {path}", fix=f"{known[key].wanted}.")
    for key, setting in known.items():
        if setting.is_required and key not in data:
            what = f"{key!r} is missing."
            raise kind(what, where=inside, fix=f"{key} = {setting.wanted}.")
    return data


def _shown(value: Any) -> str:
    # Python refuses to write out a whole number of thousands of digits.
    if isinstance(value, int) and value.bit_length() > 400:
        return f"a number of {value.bit_length():,} bits"
    return f"{short_repr(value, 200)}"


def _other(name: Any, known: Mapping[str, Field]) -> str:
    near = nearest_name(f"{name!s:.80}", known)
    return f"{near!r}, the nearest name." if near else f"one of {', '.join(known)}."
