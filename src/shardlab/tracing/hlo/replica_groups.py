"""Groups of devices in HLO text: the forms of `replica_groups`, and permutation pairs.

`match_groups` and `match_pairs` find the mesh axes that groups span.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Groups = tuple[tuple[int, ...], ...]

_LIST_FORM = r"\{(?:\{[\d,]*\},?)*\}"
_IOTA_FORM = r"\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?"
_MESH_FORM = r"mesh\[[^\]]*\](?:, ?device_ids=\((?:[^()]|\([^()]*\))*\))? ?\{[^}]*\}"
_REPLICA_GROUPS = re.compile(rf"\breplica_groups=({_LIST_FORM}|{_IOTA_FORM}|{_MESH_FORM})")
_PAIRS = re.compile(r"\bsource_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_AXIS = re.compile(r"'([^']+)'=(\d+)")
_USED_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")


def find_replica_groups(attributes: str) -> str | None:
    """Return the text of `replica_groups=` among an instruction's attributes."""
    match = _REPLICA_GROUPS.search(attributes)
    return match[1] if match else None


def parse_groups(text: str, n_devices: int) -> Groups:
    """Return the groups of devices of a `replica_groups` text.

    >>> parse_groups("{{0,2},{1,3}}", 4)
    ((0, 2), (1, 3))
    >>> parse_groups("[2,2]<=[2,2]T(1,0)", 4)
    ((0, 2), (1, 3))
    >>> parse_groups("mesh['a'=2,'b'=2] {'a'}", 4)
    ((0, 2), (1, 3))
    >>> parse_groups("mesh['a'=4], device_ids=([2,2]T(1,0)) {'a':(1)2}", 4)
    ((0, 1), (2, 3))

    The last is a sub-axis: `(1)2` splits 'a' into 1 x 2 x 2 and uses the factor of size 2. `{}` is
    all devices.
    """
    # The form of Shardy in newer XLA; the other two are the classic iota and list forms.
    if text.startswith("mesh"):
        return _parse_mesh_groups(text)
    if text.startswith("["):
        shape, _, order = text.partition("<=")
        n_groups, size = _parse_numbers(shape)
        return split_devices(_parse_iota(order), n_groups, size)
    lists = re.findall(r"\{([\d,]*)\}", text[1:-1])
    groups = tuple(tuple(_parse_numbers(text_of_group)) for text_of_group in lists)
    return groups or (tuple(range(n_devices)),)


def parse_pairs(attributes: str) -> Groups:
    """Return the (source, target) pairs of a collective-permute.

    >>> parse_pairs("source_target_pairs={{0,1},{1,0}}")
    ((0, 1), (1, 0))
    """
    match = _PAIRS.search(attributes)
    if not match:
        return ()
    return tuple(
        (int(source), int(target)) for source, target in re.findall(r"(\d+),(\d+)", match[1])
    )


def _parse_mesh_groups(text: str) -> Groups:
    head, _, used_axes = text.rpartition("{")
    inside = re.search(r"mesh\[([^\]]*)\]", head)
    axes = [(name, int(size)) for name, size in _AXIS.findall(inside[1] if inside else "")]
    order = re.search(r"device_ids=\((.*)\)\s*$", head.strip())
    positions = {name: position for position, (name, _) in enumerate(axes)}
    used = {
        positions[name]: (int(before), int(size)) if before else None
        for name, before, size in _USED_AXIS.findall(used_axes)
    }
    devices = _device_order(order[1]) if order else None
    return groups_along_axes([size for _, size in axes], used, devices)


def groups_along_axes(
    sizes: Sequence[int],
    used: Mapping[int, tuple[int, int] | None],
    devices: Sequence[int] | None = None,
) -> Groups:
    """Return the groups along mesh axes; `used` maps the position of each to its sub-axis, if any.

    A sub-axis `(before, size)` is the factor `size` of an axis that is split into before x size x
    after.

    >>> groups_along_axes([2, 2], {0: None})
    ((0, 2), (1, 3))
    """
    # Each axis is split into (before, used, after), so that a sub-axis is an axis as well.
    parts: list[tuple[int, bool]] = []
    for position, size in enumerate(sizes):
        sub_axis = used.get(position)
        if sub_axis is None:
            parts.append((size, position in used))
        else:
            before, used_size = sub_axis
            parts += [(before, False), (used_size, True), (size // (before * used_size), False)]
    return _groups_along_parts(devices or range(math.prod(sizes)), parts)


def _device_order(text: str) -> list[int]:
    return _parse_iota(text) if "[" in text else _parse_numbers(text)


def _groups_along_parts(devices: Sequence[int], parts: Sequence[tuple[int, bool]]) -> Groups:
    """Return the groups along the used factors, one for each coordinate on the others."""
    # Row-major: the last factor varies fastest.
    strides = [math.prod(size for size, _ in parts[i + 1 :]) for i in range(len(parts))]
    outer_offsets, inner_offsets = (
        [
            [stride * i for i in range(size)]
            for (size, is_used), stride in zip(parts, strides, strict=True)
            if is_used == is_inner
        ]
        for is_inner in (False, True)
    )
    inner = [sum(offsets) for offsets in itertools.product(*inner_offsets)]
    outer = [sum(offsets) for offsets in itertools.product(*outer_offsets)]
    return tuple(tuple(devices[start + step] for step in inner) for start in outer)


def _parse_iota(text: str) -> list[int]:
    """Return the devices in the order `[4,2]T(1,0)`."""
    shape_text, _, order_text = text.partition("T")
    return iota_order(_parse_numbers(shape_text), _parse_numbers(order_text))


def iota_order(shape: Sequence[int], permutation: Sequence[int]) -> list[int]:
    """Return the devices in the order of an iota that is reshaped and then transposed.

    >>> iota_order((2, 3), (1, 0))
    [0, 3, 1, 4, 2, 5]
    """
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    dims = permutation or range(len(shape))
    steps = [[strides[dim] * i for i in range(shape[dim])] for dim in dims]
    return [sum(offsets) for offsets in itertools.product(*steps)]


def split_devices(devices: Sequence[int], n_groups: int, size: int) -> Groups:
    """Return devices in groups of one size."""
    return tuple(tuple(devices[i * size : (i + 1) * size]) for i in range(n_groups))


def _parse_numbers(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", text)]


@dataclass(frozen=True)
class GroupAxes:
    """The mesh axes that a group spans.

    `deviation` says how a group differs from a product of full mesh axes; empty if it is one.
    """

    names: tuple[str, ...]
    size: int  # devices in one group
    deviation: str = ""


def match_groups(groups: Groups, sizes: Sequence[tuple[str, int]]) -> GroupAxes:
    """Return the mesh axes that groups of devices, by position in the mesh, span.

    >>> match_groups(((0, 4), (1, 5), (2, 6), (3, 7)), (("data", 2), ("model", 4)))
    GroupAxes(names=('data',), size=2, deviation='')
    >>> match_groups(((0, 1), (2, 3), (4, 5), (6, 7)), (("data", 2), ("model", 4))).deviation
    "2 of the 4 devices along 'model'"
    """
    size = max((len(group) for group in groups), default=1)
    n_coordinates = _count_distinct_coordinates(groups, sizes)
    names = tuple(name for (name, _), n in zip(sizes, n_coordinates, strict=True) if n > 1)
    n_along_axes = math.prod(length for name, length in sizes if name in names)
    if size == n_along_axes and all(len(group) == size for group in groups):
        return GroupAxes(names, size)
    if len(names) == 1:
        length = dict(sizes)[names[0]]
        return GroupAxes(names, size, f"{size} of the {length} devices along '{names[0]}'")
    product = " x ".join(f"'{name}'" for name in names)
    return GroupAxes(names, size, f"groups of {size} devices that are not a product of {product}")


def match_pairs(pairs: Groups, sizes: Sequence[tuple[str, int]]) -> GroupAxes:
    """Return the mesh axes along which a permutation sends something.

    >>> match_pairs(((0, 1), (1, 0), (2, 2)), (("data", 2), ("model", 2)))
    GroupAxes(names=('model',), size=2, deviation='')
    """
    n_coordinates = _count_distinct_coordinates(pairs, sizes)
    names = tuple(name for (name, _), n in zip(sizes, n_coordinates, strict=True) if n > 1)
    return GroupAxes(names, math.prod(dict(sizes)[name] for name in names))


def _count_distinct_coordinates(groups: Groups, sizes: Sequence[tuple[str, int]]) -> list[int]:
    """Return for each axis at how many coordinates the devices of one group are, at most."""
    n_coordinates = [1] * len(sizes)
    stride = math.prod(size for _, size in sizes)
    for i, (_, size) in enumerate(sizes):
        # Positions are row-major, so this is the distance between neighbors along the axis.
        stride //= size
        n_coordinates[i] = max(
            (len({device // stride % size for device in group}) for group in groups), default=1
        )
    return n_coordinates
