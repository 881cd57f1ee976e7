"""What is wrong with a field of a form or a request, in words instead of pydantic's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_EXAMPLES = {"sequence": "4096", "microbatch": "2", "devices": "64", "headroom": "0.1"}
# What people call a field whose name in the API is another.
_TITLES = {"source": "The program", "target": "The name of the function", "mesh": "The mesh"}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


def field_message(name: str, error: Mapping[str, Any]) -> str:
    """Return a sentence for one of pydantic's errors.

    >>> field_message("batch", {"type": "int_parsing", "msg": "..."})
    'Batch must be an integer, such as 16.'
    >>> field_message("batch", {"type": "greater_than_equal", "msg": "...", "ctx": {"ge": 1}})
    'Batch must be at least 1.'
    >>> field_message("source", {"type": "string_too_short", "msg": "..."})
    'The program is empty.'
    """
    kind = error["type"]
    title = _TITLES.get(name, name[:1].upper() + name[1:])
    if not name:
        return f"{str(error['msg'])[:200]}."
    if kind.startswith("int_"):
        return f"{title} must be an integer, such as {_EXAMPLES.get(name, '16')}."
    if kind.startswith("float_"):
        return f"{title} must be a number, such as {_EXAMPLES.get(name, '0.5')}."
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        bound = f"{error['ctx'][key]:,}".removesuffix(".0")
        return f"{title} must be {words} {bound}."
    if kind == "string_too_short":
        n_least = error.get("ctx", {}).get("min_length", 1)
        return (
            f"{title} {'is empty' if n_least == 1 else f'must have at least {n_least} characters'}."
        )
    if kind == "string_too_long":
        return f"{title} is too long: at most {error['ctx']['max_length']:,} characters."
    if kind == "missing":
        return f"{title} is missing."
    return f"{name}: {str(error['msg'])[:200]}."
