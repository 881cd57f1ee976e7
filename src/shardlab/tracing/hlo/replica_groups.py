"""Who exchanges with whom: the four spellings of `replica_groups`, and permutation pairs.

Groups of devices -> the person's mesh axes.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

Groups = tuple[tuple[int, ...], ...]

_LISTS = r"\{(?:\{[\d,]*\},?)*\}"
_IOTA = r"\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?"
_MESH = r"mesh\[[^\]]*\](?:, ?device_ids=\((?:[^()]|\([^()]*\))*\))? ?\{[^}]*\}"
_SPELLED = re.compile(rf"\breplica_groups=({_LISTS}|{_IOTA}|{_MESH})")
_PAIRS = re.compile(r"\bsource_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_AXIS = re.compile(r"'([^']+)'=(\d+)")
_USED = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")


def spelled_groups(attributes: str) -> str | None:
    """Return the text of `replica_groups=` among an instruction's attributes."""
    match = _SPELLED.search(attributes)
    return match[1] if match else None


def parse_groups(text: str, n_devices: int) -> Groups:
    """Return the groups of devices that a `replica_groups` text stands for.

    >>> parse_groups("{{0,2},{1,3}}", 4)
    ((0, 2), (1, 3))
    >>> parse_groups("[2,2]<=[2,2]T(1,0)", 4)
    ((0, 2), (1, 3))
    >>> parse_groups("mesh['a'=2,'b'=2] {'a'}", 4)
    ((0, 2), (1, 3))
    >>> parse_groups("mesh['a'=4], device_ids=([2,2]T(1,0)) {'a':(1)2}", 4)
    ((0, 1), (2, 3))

    The last is a part of an axis: `(1)2` splits 'a' into 1 x 2 x 2 and takes the part of size 2.
    `{}` is everybody.
    """
    if text.startswith("mesh"):
        return _of_mesh(text)
    if text.startswith("["):
        shape, _, order = text.partition("<=")
        n_groups, size = _numbers(shape)
        return _chunks(_iota(order), n_groups, size)
    lists = re.findall(r"\{([\d,]*)\}", text[1:-1])
    groups = tuple(tuple(_numbers(each)) for each in lists)
    return groups or (tuple(range(n_devices)),)


def parse_pairs(attributes: str) -> Groups:
    """Return the (source, target) pairs of a collective-permute.

    >>> parse_pairs("source_target_pairs={{0,1},{1,0}}")
    ((0, 1), (1, 0))
    """
    match = _PAIRS.search(attributes)
    if not match:
        return ()
    return tuple((int(a), int(b)) for a, b in re.findall(r"(\d+),(\d+)", match[1]))


def _of_mesh(text: str) -> Groups:
    head, _, used = text.rpartition("{")
    inside = re.search(r"mesh\[([^\]]*)\]", head)
    axes = [(name, int(size)) for name, size in _AXIS.findall(inside[1] if inside else "")]
    order = re.search(r"device_ids=\((.*)\)\s*$", head.strip())
    total = math.prod(size for _, size in axes)
    devices = list(range(total)) if not order else _device_order(order[1])
    # Each axis is cut into (before, taken, after), so that a part of an axis is an axis as well.
    cuts = {name: [(size, False)] for name, size in axes}
    for name, before, taken in _USED.findall(used):
        size = dict(axes)[name]
        if not before:
            cuts[name] = [(size, True)]
        else:
            after = size // (int(before) * int(taken))
            cuts[name] = [(int(before), False), (int(taken), True), (after, False)]
    parts = [part for name, _ in axes for part in cuts[name]]
    return _along(devices, parts)


def _device_order(text: str) -> list[int]:
    return _iota(text) if "[" in text else _numbers(text)


def _along(devices: Sequence[int], parts: Sequence[tuple[int, bool]]) -> Groups:
    """Return the groups along the parts that are taken, for each place on the others."""
    strides = [math.prod(size for size, _ in parts[i + 1 :]) for i in range(len(parts))]
    kept, taken = (
        [
            [stride * i for i in range(size)]
            for (size, is_taken), stride in zip(parts, strides, strict=True)
            if is_taken == wanted
        ]
        for wanted in (False, True)
    )
    inner = [sum(place) for place in itertools.product(*taken)]
    outer = [sum(place) for place in itertools.product(*kept)]
    return tuple(tuple(devices[start + step] for step in inner) for start in outer)


def _iota(text: str) -> list[int]:
    """Return the devices in the order `[4,2]T(1,0)`: counted, arranged in 4 x 2, transposed."""
    shape_text, _, order_text = text.partition("T")
    shape = _numbers(shape_text)
    order = _numbers(order_text) or list(range(len(shape)))
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    steps = [[strides[axis] * i for i in range(shape[axis])] for axis in order]
    return [sum(place) for place in itertools.product(*steps)]


def _chunks(devices: Sequence[int], n_groups: int, size: int) -> Groups:
    return tuple(tuple(devices[i * size : (i + 1) * size]) for i in range(n_groups))


def _numbers(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", text)]


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
