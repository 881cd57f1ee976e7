"""Sub-axes: mesh axes split into factors, so that a collective can run over part of an axis.

>>> mesh = Mesh(data=4, model=2)
>>> split = split_axes(mesh, (("data",),), (("model",),))
>>> split["data"], split["model"]
((('data:(1)2', 2), ('data:(2)2', 2)), (('model', 2),))
>>> str(split_mesh(mesh, {"data": split["data"]}))
'data:(1)2=2,data:(2)2=2,model=2'

Names are those of Shardy and of `replica_groups` in HLO text: `data:(2)2` is the factor of size 2
of 'data' with factors of product 2 before it. From P('data') to P('model') on this mesh each device
needs a shard of twice the size: 'data:(2)2' is gathered, and 'data:(1)2' changes places with
'model'. XLA does the same, so a search over full axes would propose more bytes than XLA sends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from shardlab.sharding.mesh import Mesh

Assignment = tuple[tuple[str, ...], ...]  # the mesh axes of each dimension, major first
_SUB_AXIS = re.compile(r":\(\d+\)\d+$")
SubAxes = tuple[tuple[str, int], ...]  # names and sizes, major first


def split_axes(mesh: Mesh, start: Assignment, goal: Assignment) -> dict[str, SubAxes]:
    """Return the sub-axes of each mesh axis that make the shards of start and goal line up.

    In a dimension sharded 4 ways at the start and 2 ways at the goal, the first mesh axis must have
    a boundary at 2. A boundary in one dimension splits the axis everywhere, which can make new
    boundaries in other dimensions, so this repeats until nothing changes.
    """
    cuts = {name: [1, size] if size > 1 else [1] for name, size in mesh.shape.items()}
    is_changed = True
    while is_changed:
        is_changed = False
        for dim_ends in zip(start, goal, strict=True):
            regions = [region for names in dim_ends for region in _regions(names, mesh)]
            boundaries = sorted({before * cut for name, before in regions for cut in cuts[name]})
            for name, before in regions:
                for boundary in boundaries:
                    if _fits(boundary, before, mesh.shape[name], cuts[name]):
                        cuts[name] = sorted([*cuts[name], boundary // before])
                        is_changed = True
    return {name: _named_factors(name, axis_cuts) for name, axis_cuts in cuts.items()}


def _regions(names: Sequence[str], mesh: Mesh) -> list[tuple[str, int]]:
    """Return each mesh axis of a dimension with the number of shards over the axes before it."""
    regions, before = [], 1
    for name in names:
        regions.append((name, before))
        before *= mesh.shape[name]
    return regions


def _fits(boundary: int, before: int, size: int, cuts: Sequence[int]) -> bool:
    """Return whether an axis can be split at a boundary inside it: sizes 2 and 3 never line up."""
    cut, remainder = divmod(boundary, before)
    if remainder or not 1 < cut < size or cut in cuts:
        return False
    return all(max(cut, other) % min(cut, other) == 0 for other in cuts)


def _named_factors(name: str, cuts: Sequence[int]) -> SubAxes:
    if len(cuts) <= 2:
        return ((name, cuts[-1]),)
    return tuple(
        (f"{name}:({start}){stop // start}", stop // start) for start, stop in pairwise(cuts)
    )


def split_mesh(mesh: Mesh, sub_axes: Mapping[str, SubAxes]) -> Mesh:
    """Return the mesh with some axes replaced by their sub-axes; devices stay in place."""
    axes: list[tuple[str, int]] = []
    types: list[str] = []
    for (name, size), axis_type in zip(mesh.shape.items(), mesh.axis_types, strict=True):
        factors = sub_axes.get(name, ((name, size),))
        axes += factors
        types += [axis_type] * len(factors)
    return Mesh(axes, device_ids=mesh.device_ids, axis_types=types)


def merge_axes(names: tuple[str, ...], factors: SubAxes, axis: str) -> tuple[str, ...] | None:
    """Return `names` with the sub-axes of `axis` as the axis itself; None if they are not together.

    >>> factors = (("data:(1)2", 2), ("data:(2)2", 2))
    >>> merge_axes(("model", "data:(1)2", "data:(2)2"), factors, "data")
    ('model', 'data')
    >>> merge_axes(("data:(2)2", "model"), factors, "data") is None
    True
    """
    parts = tuple(name for name, _ in factors)
    used = [name for name in names if name in parts]
    if not used:
        return names
    first = names.index(used[0])
    if names[first : first + len(parts)] != parts:
        return None
    return (*names[:first], axis, *names[first + len(parts) :])


def parent_axis(name: str) -> str:
    """Return the mesh axis that a sub-axis is a factor of, or the name of a full axis.

    >>> parent_axis("data:(2)2"), parent_axis("data")
    ('data', 'data')
    """
    return _SUB_AXIS.sub("", name)
