"""Groups of devices -> the person's mesh axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shardlab.hlo.groups import Groups


@dataclass(frozen=True)
class Along:
    """The mesh axes along which devices exchange, and what part of them where not all.

    `partly` says in words how a group differs from a product of whole mesh axes; empty where it
    is one.
    """

    names: tuple[str, ...]
    size: int  # devices in one group
    partly: str = ""


def along(groups: Groups, sizes: Sequence[tuple[str, int]]) -> Along:
    """Return the axes of a mesh that groups of its devices, by place in it, run along.

    >>> along(((0, 4), (1, 5), (2, 6), (3, 7)), (("data", 2), ("model", 4)))
    Along(names=('data',), size=2, partly='')
    >>> along(((0, 1), (2, 3), (4, 5), (6, 7)), (("data", 2), ("model", 4))).partly
    "2 of the 4 devices along 'model'"
    """
    size = max((len(group) for group in groups), default=1)
    counts = _distinct(groups, sizes)
    names = tuple(name for (name, _), n in zip(sizes, counts, strict=True) if n > 1)
    whole = math.prod(length for name, length in sizes if name in names)
    if size == whole and all(len(group) == size for group in groups):
        return Along(names, size)
    if len(names) == 1:
        length = dict(sizes)[names[0]]
        return Along(names, size, f"{size} of the {length} devices along '{names[0]}'")
    shown = " x ".join(f"'{name}'" for name in names)
    return Along(names, size, f"groups of {size} devices that are no product of {shown}")


def along_pairs(pairs: Groups, sizes: Sequence[tuple[str, int]]) -> Along:
    """Return the axes along which a permutation moves something.

    >>> along_pairs(((0, 1), (1, 0), (2, 2)), (("data", 2), ("model", 2)))
    Along(names=('model',), size=2, partly='')
    """
    counts = _distinct(pairs, sizes)
    names = tuple(name for (name, _), n in zip(sizes, counts, strict=True) if n > 1)
    return Along(names, math.prod(dict(sizes)[name] for name in names))


def _distinct(groups: Groups, sizes: Sequence[tuple[str, int]]) -> list[int]:
    """Return at how many places of each axis the devices of one group stand, at most."""
    counts = [1] * len(sizes)
    stride = math.prod(size for _, size in sizes)
    for i, (_, size) in enumerate(sizes):
        stride //= size
        counts[i] = max(
            (len({device // stride % size for device in group}) for group in groups), default=1
        )
    return counts
