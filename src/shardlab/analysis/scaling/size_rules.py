"""Numbers of a program as functions of the mesh sizes: is 64, 86, 128 a rule, and does 8192 follow?

A number is known on the full mesh and on several small ones. It follows a rule if it is constant,
or `a * u + b`, where `u` is a product or quotient of axis sizes, its root or its logarithm.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

# Fewer distinct points fit any two numbers a and b.
_MIN_POINTS = 3
Number = int | float


class SizeRules:
    """Finds the rule of a number on these meshes; the first is the full one.

    >>> rules = SizeRules([{"data": 256}, {"data": 2}, {"data": 3}, {"data": 4}])
    >>> rules.follows([8192, 64, 96, 128]), rules.follows([255, 1, 2, 3])
    (True, True)
    >>> rules.follows([2, 1, 1, 1])  # another number, but only on the large mesh
    False
    >>> rules.follows([1 / 256, 1 / 2, 1 / 3, 1 / 4])
    True
    """

    def __init__(self, sizes: Sequence[Mapping[str, int]]) -> None:
        self.sizes = tuple(sizes)
        self._units = tuple(_list_units(sizes))
        self._results: dict[tuple[Number, ...], bool] = {}

    def follows(self, values: Sequence[Number], tolerance: float = 4e-7) -> bool:
        """Return whether the values, one for each mesh, follow one rule."""
        if all(value == values[0] or value != value != values[0] for value in values):
            return True  # also NaN on every mesh
        key = tuple(values)
        if key not in self._results:
            self._results[key] = self._fits(values, tolerance)
        return self._results[key]

    def _fits(self, values: Sequence[Number], tolerance: float) -> bool:
        if not all(math.isfinite(value) for value in values):
            return False
        if all(isinstance(value, int) for value in values):
            return any(_is_affine(values, unit) for unit in self._units)
        floats = [float(value) for value in values]
        return any(
            _is_nearly_affine(floats, [function(float(u)) for u in unit], tolerance)
            for unit in self._units
            for function in (float, math.sqrt, math.log2)
        )

    def n_devices(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return the number of devices along these mesh axes on each mesh."""
        return tuple(math.prod(sizes.get(name, 1) for name in names) for sizes in self.sizes)


def _list_units(sizes: Sequence[Mapping[str, int]]) -> Iterator[tuple[Fraction, ...]]:
    """Yield products and quotients of the axis sizes that take enough values to test a rule."""
    changing = [name for name in sizes[0] if len({mesh[name] for mesh in sizes}) > 1]
    for powers in itertools.product((0, 1, -1), repeat=len(changing)):
        unit = tuple(
            math.prod(
                (
                    Fraction(mesh[name]) ** power
                    for name, power in zip(changing, powers, strict=True)
                ),
                start=Fraction(1),
            )
            for mesh in sizes
        )
        if len(set(unit[1:])) >= _MIN_POINTS:
            yield unit


def _is_affine(values: Sequence[Number], unit: Sequence[Fraction]) -> bool:
    """Return whether integers are exactly `a * unit + b`."""
    first, second = _two_points(unit)
    a = Fraction(int(values[second]) - int(values[first])) / (unit[second] - unit[first])
    b = int(values[first]) - a * unit[first]
    return all(a * u + b == value for value, u in zip(values, unit, strict=True))


def _is_nearly_affine(values: Sequence[float], unit: Sequence[float], tolerance: float) -> bool:
    first, second = _two_points(unit)
    a = (values[second] - values[first]) / (unit[second] - unit[first])
    b = values[first] - a * unit[first]
    # Relative to each value: 1/256 must fit as well as 1/2.
    return all(
        abs(a * u + b - value) <= tolerance * max(abs(value), abs(b))
        for value, u in zip(values, unit, strict=True)
    )


def _two_points(unit: Sequence[Number | Fraction]) -> tuple[int, int]:
    """Return two of the small meshes on which the unit differs most."""
    small = range(1, len(unit))
    return min(small, key=unit.__getitem__), max(small, key=unit.__getitem__)
