"""Limits of the layouts that a page or a script asks for."""

from __future__ import annotations

from math import prod

from shardlab.errors import InvalidSize
from shardlab.sharding.dtype import Dtype
from shardlab.sharding.shape import parse_array

MAX_TEXT = 400  # characters of one field, as in web/src/explorer/state.ts
_LARGEST_ARRAY = 2**200  # elements: amounts of bytes stay printable


def parse_limited_array(text: str) -> tuple[tuple[int, ...], Dtype]:
    """Return shape and dtype of a text such as `bf16[4096,16384]`. Raises `LabError`."""
    shape, dtype = parse_array(text)
    if prod(shape) >= _LARGEST_ARRAY:
        raise InvalidSize(
            "The array has 2**200 elements or more.",
            fix="a smaller shape, such as 4096x16384:bf16.",
        )
    return shape, dtype
