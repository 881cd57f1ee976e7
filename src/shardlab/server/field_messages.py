"""What is wrong with a field of a form or a request, in words instead of pydantic's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_EXAMPLES = {"sequence": "4096", "microbatch": "2", "devices": "64", "headroom": "0.1"}
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
    """
    kind, title = error["type"], name[:1].upper() + name[1:]
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
    if kind == "missing":
        return f"{title} is missing."
    return f"{name}: {str(error['msg'])[:200]}."
