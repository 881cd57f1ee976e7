"""Whole sizes: of array axes and of mesh axes.

>>> parse_size(8, "array axis 0")
8
>>> parse_size(-2, "array axis 0")
Traceback (most recent call last):
    ...
shardlab.errors.BadSize: [layout.bad_size] The size of array axis 0 is -2.
  try:   a size of 0 or more.
"""

from __future__ import annotations

import operator
from typing import Any

from shardlab.errors import BadSize, BadType
from shardlab.errors.brief import brief

# Python counts without bounds, so arithmetic stays exact far beyond any array; the bound keeps
# products printable and quick. JAX itself answers for 2**70.
_TOO_LARGE = 1 << 128


def parse_size(size: Any, owner: str, *, at_least: int = 0, where: str = "") -> int:
    """Return `size` as an int, or say whose size is wrong.

    Anything with `__index__` counts, so NumPy integers do and 8.0 does not.
    """
    try:
        number = operator.index(size)
    except TypeError:
        raise BadType(
            f"The size of {owner} is {brief(size)}, a {type(size).__name__}.",
            where=where,
            fix="a whole number, such as 8.",
        ) from None
    if at_least <= number < _TOO_LARGE:
        return number
    shown = number if abs(number) < _TOO_LARGE else f"a number of {number.bit_length():,} bits"
    limit = f"a size of {at_least} or more" if number < at_least else "a size below 2**128"
    raise BadSize(f"The size of {owner} is {shown}.", where=where, fix=f"{limit}.")
