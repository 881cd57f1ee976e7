"""Groups of devices in words, also on large meshes.

>>> who(("data",), (8,), [1, 0, 0, 0, 0, 0, 0, 0])
{1: 'data=0', 0: 'data=1..7'}
>>> who(("data", "model"), (2, 4), [0, 0, 1, 1, 0, 0, 1, 1])
{0: 'model=0,1', 1: 'model=2,3'}
>>> who(("data", "model"), (16, 32), [int(n == 77) for n in range(512)])
{0: 'the other 511 devices', 1: 'data=2 model=13'}
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence

# Longer lists of single devices are cut off.
_MOST_LISTED = 4


def who(axes: Sequence[str], sizes: Sequence[int], outcomes: Sequence[int]) -> dict[int, str]:
    """Return the devices of each outcome in words, outcomes in order of appearance."""
    axes, sizes, outcomes = _only_what_matters(tuple(axes), tuple(sizes), tuple(outcomes))
    coordinates = list(itertools.product(*map(range, sizes)))
    groups: dict[int, list[tuple[int, ...]]] = {}
    for coordinate, outcome in zip(coordinates, outcomes, strict=True):
        groups.setdefault(outcome, []).append(coordinate)
    return {
        outcome: _told(axes, sizes, group, is_one_of=len(groups))
        for outcome, group in groups.items()
    }


def _only_what_matters(
    axes: tuple[str, ...], sizes: tuple[int, ...], outcomes: tuple[int, ...]
) -> tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]:
    """Leave out mesh axes along which the outcome never changes."""
    for n in reversed(range(len(axes))):
        after = math.prod(sizes[n + 1 :])
        step = after * sizes[n]
        rows = [outcomes[i : i + step] for i in range(0, len(outcomes), step)]
        if all(row[:after] * sizes[n] == row for row in rows):
            outcomes = tuple(x for row in rows for x in row[:after])
            axes, sizes = axes[:n] + axes[n + 1 :], sizes[:n] + sizes[n + 1 :]
    return axes, sizes, outcomes


def _told(
    axes: tuple[str, ...], sizes: tuple[int, ...], group: list[tuple[int, ...]], is_one_of: int
) -> str:
    if is_one_of == 1:
        return "all devices"
    places = [sorted(set(column)) for column in zip(*group, strict=True)]
    if math.prod(map(len, places)) == len(group):
        told = [
            f"{axis}={runs(place)}"
            for axis, size, place in zip(axes, sizes, places, strict=True)
            if len(place) < size or len(axes) == 1
        ]
        return " ".join(told)
    if is_one_of == 2 and len(group) * 2 > math.prod(sizes):
        return f"the other {len(group)} devices"
    listed = [
        " ".join(f"{a}={i}" for a, i in zip(axes, at, strict=True)) for at in group[:_MOST_LISTED]
    ]
    more = len(group) - len(listed)
    return "; ".join(listed) + (f" and {more} more" if more else "")


def runs(numbers: Collection[int]) -> str:
    """Return numbers as runs.

    >>> runs([0, 1, 2, 3, 7, 9, 10])
    '0..3,7,9,10'
    >>> runs(range(0, 512, 2))
    '0,2,4 .. 510'
    """
    ordered = sorted(numbers)
    parts: list[list[int]] = []
    for number in ordered:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    told = [
        f"{part[0]}..{part[-1]}" if len(part) > 2 else ",".join(map(str, part)) for part in parts
    ]
    steps = {b - a for a, b in itertools.pairwise(ordered)}
    if len(told) > 6 and len(steps) == 1:
        return f"{ordered[0]},{ordered[1]},{ordered[2]} .. {ordered[-1]}"
    return (
        ",".join(told) if len(told) <= 6 else ",".join(told[:5]) + f" ... ({len(ordered)} in all)"
    )
