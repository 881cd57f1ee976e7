"""The numbers of a family's paths: all combinations of ranges, or a list.

>>> ranges_of([("0", "3"), ("0", "4"), ("1", "3"), ("1", "4")])
(range(0, 2), range(3, 5))
>>> numbers_text((range(3, 61), range(256)), None)
'3..60 × 0..255'
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

Numbers = tuple[str, ...]  # those of one path, as they are written: "007" is not "7"


def ranges_of(listed: Sequence[Numbers]) -> tuple[range, ...] | None:
    """Return the ranges whose combinations, in their order, are the listed ones, if there are."""
    if not listed:
        return None
    columns = [dict.fromkeys(column) for column in zip(*listed, strict=True)]
    ranges = []
    for column in columns:
        first = next(iter(column))
        if not first.isdecimal():
            return None
        steps = range(int(first), int(first) + len(column))
        if tuple(column) != tuple(map(str, steps)):
            return None
        ranges.append(steps)
    if prod(map(len, ranges)) != len(listed) or not _in_order(listed, ranges):
        return None
    return tuple(ranges)


def _in_order(listed: Sequence[Numbers], ranges: Sequence[range]) -> bool:
    from itertools import product

    wanted = product(*(map(str, each) for each in ranges))
    return all(one == other for one, other in zip(listed, wanted, strict=True))


def numbers_text(ranges: Sequence[range], listed: Sequence[Numbers] | None) -> str:
    """Return the numbers that each star of a family's name stands for.

    >>> numbers_text((), [("0",), ("1",), ("2",), ("7",)])
    '0..2, 7'
    """
    if listed is None:
        return " × ".join(f"{each[0]}..{each[-1]}" for each in ranges)
    columns = zip(*listed, strict=True)
    return " × ".join(_runs(map(int, dict.fromkeys(each))) for each in columns)


def _runs(numbers: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}..{b}" for a, b in runs)
