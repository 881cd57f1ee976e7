"""Bounds of an integer on each mesh, and whether it is made from a device's position."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardlab import _jax

Bound = int | float
Bounds = tuple[Bound, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ValueRange:
    """The bounds of all elements of a value, on each mesh; None if they are not known.

    `from_device` says that it is an arithmetic function of `lax.axis_index`. `strides` is then how
    far neighbors are apart: in `axis_index * 64 + iota` it is 64.
    """

    lows: Bounds | None = None
    highs: Bounds | None = None
    from_device: bool = False
    strides: tuple[int, ...] | None = None

    @classmethod
    def of_bounds(cls, pairs: Sequence[tuple[Bound, Bound]]) -> ValueRange:
        return cls(tuple(low for low, _ in pairs), tuple(high for _, high in pairs))

    @property
    def pairs(self) -> list[tuple[Bound, Bound]] | None:
        """Return the bounds on each mesh."""
        if self.lows is None or self.highs is None:
            return None
        return list(zip(self.lows, self.highs, strict=True))

    @property
    def constant(self) -> Bounds | None:
        """Return the value on each mesh, if it is one number that no device changes."""
        return self.lows if self.lows == self.highs and not self.from_device else None

    def with_bounds_of(self, other: ValueRange) -> ValueRange:
        return dataclasses.replace(self, lows=other.lows, highs=other.highs)

    def without_bounds(self) -> ValueRange:
        return dataclasses.replace(self, lows=None, highs=None)


UNKNOWN = ValueRange()


def array_range(arrays: Sequence[Any]) -> ValueRange:
    """Return the bounds of an integer or boolean array on each mesh; of a float only if one."""
    pairs: list[tuple[Any, Any]] = []
    for value in arrays:
        if _jax.is_extended(getattr(value, "dtype", None)):
            return UNKNOWN
        array = np.asarray(value)
        convert = int if array.dtype.kind in "biu" else float
        if array.size == 0 or array.dtype.kind == "c" or (convert is float and array.size > 1):
            return UNKNOWN
        pair = (convert(array.min()), convert(array.max()))
        if not all(map(math.isfinite, pair)):
            return UNKNOWN
        pairs.append(pair)
    return ValueRange.of_bounds(pairs)


def combine(
    function: Callable[[Bound, Bound], Bound], first: ValueRange, second: ValueRange
) -> ValueRange:
    """Return the bounds of a function that is monotonic in each operand.

    >>> one, two = ValueRange.of_bounds([(0, 3)]), ValueRange.of_bounds([(-1, 2)])
    >>> combine(lambda a, b: a * b, one, two).pairs
    [(-3, 6)]
    """
    strides = _common_strides(first, second)
    from_device = first.from_device or second.from_device
    a, b = first.pairs, second.pairs
    if a is None or b is None:
        return ValueRange(from_device=from_device, strides=strides)
    pairs = []
    for lower, upper in zip(a, b, strict=True):
        corners = [function(x, y) for x in lower for y in upper]
        if any(map(math.isnan, corners)):
            return ValueRange(from_device=from_device, strides=strides)
        pairs.append((min(corners), max(corners)))
    bounds = ValueRange.of_bounds(pairs)
    return dataclasses.replace(bounds, from_device=from_device, strides=strides)


def union(ranges: Sequence[ValueRange]) -> ValueRange:
    """Return the bounds of a value that may be any of these."""
    from_device = any(item.from_device for item in ranges)
    strides = ranges[0].strides
    for item in ranges[1:]:
        strides = _common_strides(ValueRange(strides=strides), item)
    pairs = [item.pairs for item in ranges]
    known = [item for item in pairs if item is not None]
    if len(known) < len(pairs):
        return ValueRange(from_device=from_device, strides=strides)
    bounds = ValueRange.of_bounds(
        [
            (min(low for low, _ in each), max(high for _, high in each))
            for each in zip(*known, strict=True)
        ]
    )
    return dataclasses.replace(bounds, from_device=from_device, strides=strides)


def multiply(value: ValueRange, factors: Sequence[int]) -> ValueRange:
    """Return the bounds of a sum of that many values."""
    pairs = value.pairs
    if pairs is None:
        return value
    bounds = ValueRange.of_bounds(
        [(low * n, high * n) for (low, high), n in zip(pairs, factors, strict=True)]
    )
    return value.with_bounds_of(bounds)


def scale_strides(value: ValueRange, factor: ValueRange) -> ValueRange:
    """Return the value with the strides that a multiplication by a constant gives it."""
    constant = factor.constant
    if value.strides is None or constant is None:
        return value
    strides = tuple(int(s * c) for s, c in zip(value.strides, constant, strict=True))
    return dataclasses.replace(value, strides=strides)


def _common_strides(first: ValueRange, second: ValueRange) -> tuple[int, ...] | None:
    """Return the strides of a sum: those of the only device position in it, or of both."""
    if first.strides is None or second.strides is None:
        return first.strides or second.strides
    return tuple(map(math.gcd, first.strides, second.strides))


# Each function returns whether a comparison holds: always (1), never (0), or it depends (None).
Comparison = Callable[[tuple[Bound, Bound], tuple[Bound, Bound]], int | None]


def _less(a: tuple[Bound, Bound], b: tuple[Bound, Bound]) -> int | None:
    if a[1] < b[0]:
        return 1
    return 0 if a[0] >= b[1] else None


def _equal(a: tuple[Bound, Bound], b: tuple[Bound, Bound]) -> int | None:
    if a[1] < b[0] or b[1] < a[0]:
        return 0
    return 1 if a[0] == a[1] == b[0] == b[1] else None


def _negate(outcome: int | None) -> int | None:
    return None if outcome is None else 1 - outcome


COMPARISONS: dict[str, Comparison] = {
    "lt": _less,
    "gt": lambda a, b: _less(b, a),
    "ge": lambda a, b: _negate(_less(a, b)),
    "le": lambda a, b: _negate(_less(b, a)),
    "eq": _equal,
    "ne": lambda a, b: _negate(_equal(a, b)),
}
