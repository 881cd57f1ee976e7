"""Weights gathered to be used: what FSDP makes whole of one layer while a device works on it.

Tensors cut over mesh axes that cut the batch too are whole along these while they are used, and cut
by tensor axes, and experts by expert axes, as before. Layers come one after the other, and so do
the tables before and after them: the largest counts, once. XLA may gather the next one meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from shardlab.planner.memory.batch_shards import Share
from shardlab.planner.memory.device_bytes import dtype_of, hold
from shardlab.planner.memory.dtype_policy import DtypePolicy
from shardlab.planner.plan import MemoryItem
from shardlab.planner.rules.matching import ShardedGroup
from shardlab.planner.strategies.axis_roles import batch_axes, mesh_axis_roles
from shardlab.planner.strategies.dim_meaning import dim_meanings_of
from shardlab.planner.strategies.layer_stack import find_stack_position
from shardlab.planner.tensor_group import TensorGroup
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec


@dataclass(frozen=True)
class _Used:
    """Bytes of a family that are gathered for each of its layers; None: it is in no layer."""

    group: TensorGroup
    n_bytes: int  # of one tensor, or of one slice
    # layer -> tensors of it; arrays that hold n layers have one layer, -n
    layers: Mapping[int, int] | None

    def n_in(self, layers: Collection[int]) -> int:
        """Return how many of its tensors are used in any of these layers at one time."""
        return max((self.layers.get(each, 0) for each in layers), default=0) if self.layers else 1


def gathered_items(
    placed: Iterable[ShardedGroup], mesh: Mesh, policy: DtypePolicy
) -> tuple[MemoryItem, ...]:
    """Return the item of what is gathered at one time; nothing where no weights are cut like that.

    >>> from shardlab.planner.models.load import load_model
    >>> from shardlab.planner.strategies.strategy import parse_strategy, place
    >>> mesh = Mesh(fsdp=8)
    >>> placed = place(load_model("llama3-70b"), parse_strategy("fsdp"), mesh)
    >>> gathered_items(placed, mesh, DtypePolicy())[0].bytes_per_device  # the logits' table
    2101346304
    """
    used = _used(placed, mesh, policy)
    if not used:
        return ()
    n_bytes, tensors = _largest(used)
    names = batch_axes(mesh)
    along = Share(tuple((name, mesh.shape[name]) for name in names if mesh.shape[name] > 1))
    first = max(tensors, key=lambda each: each.n_bytes * max((each.layers or {0: 1}).values()))
    what = f"{len(tensors)} kinds of tensors of one layer" if len(tensors) > 1 else "one tensor"
    formula = (
        f"{what}, whole along {along} and cut by other axes as they are held; the largest: "
        f"{first.group.name} {list(first.group.shape)}"
    )
    return (
        MemoryItem(
            kind="activations",
            name="weights gathered at one time",
            bytes_per_device=n_bytes,
            formula=formula,
        ),
    )


def gathered_bytes(placed: Iterable[ShardedGroup], mesh: Mesh, policy: DtypePolicy) -> int:
    """Return the bytes of `gathered_items`, without words."""
    used = _used(placed, mesh, policy)
    return _largest(used)[0] if used else 0


def _used(placed: Iterable[ShardedGroup], mesh: Mesh, policy: DtypePolicy) -> list[_Used]:
    batch = frozenset(name for name in batch_axes(mesh) if mesh.shape[name] > 1)
    experts = mesh_axis_roles(mesh).get("expert", ())
    found = []
    for each in placed if batch else ():
        group = each.group
        at_home = experts if experts and "experts" in (dim_meanings_of(group) or ()) else ()
        if not (along := batch.difference(at_home)).isdisjoint(each.spec.mesh_axes):
            dtype, spec = dtype_of(group, policy), _whole_along(each.spec, along)
            held = hold("parameters", "", group.shape, dtype, spec, mesh, 1)
            n_slices = _n_slices(group, held.shard_shape)
            found.append(_Used(group, held.bytes_per_device // n_slices, _layers(group)))
    return found


@lru_cache(maxsize=4096)
def _whole_along(spec: Spec, names: frozenset[str]) -> Spec:
    """Return the spec without these mesh axes."""
    return Spec(*(tuple(name for name in entry if name not in names) for entry in spec.axes))


def _n_slices(group: TensorGroup, shape: tuple[int, ...]) -> int:
    """Return how many layers an array, or a part of it, holds."""
    axes = dim_meanings_of(group) or ()
    return shape[axes.index("layers")] or 1 if "layers" in axes else 1


def _layers(group: TensorGroup) -> Mapping[int, int] | None:
    """Return how many tensors of a family are in each layer; kept with it, for searches."""
    known: dict[str, Any] = group.__dict__
    if "_layers" not in known:
        known["_layers"] = _count(group)
    layers: Mapping[int, int] | None = known["_layers"]
    return layers


def _count(group: TensorGroup) -> Mapping[int, int] | None:
    at = find_stack_position(group, "layers")
    if at is None:
        n_slices = _n_slices(group, group.shape)
        return {-n_slices: group.n_tensors} if "layers" in (dim_meanings_of(group) or ()) else None
    if group.listed_numbers is not None:
        return Counter(int(numbers[at]) for numbers in group.listed_numbers)
    each = group.n_tensors // len(group.ranges[at])
    return dict.fromkeys(group.ranges[at], each)


def _largest(used: Sequence[_Used]) -> tuple[int, list[_Used]]:
    """Return the most that is gathered at one time, with what it is."""
    alone = [(each.n_bytes, [each]) for each in used if each.layers is None]
    return max((*alone, *(_in_layers(used, layers) for layers in _at_work(used))), key=_first)


def _in_layers(used: Sequence[_Used], layers: Collection[int]) -> tuple[int, list[_Used]]:
    group = [each for each in used if each.layers is not None and each.n_in(layers)]
    return sum(each.n_bytes * each.n_in(layers) for each in group), group


def _first(pair: tuple[int, list[_Used]]) -> int:
    return pair[0]


def _at_work(used: Sequence[_Used]) -> Iterator[tuple[int, ...]]:
    """Yield one layer of each sort.

    What layers hold changes only where a family begins. Of stacked arrays those that hold most
    layers are in each, with one of the others, as the dense and the mixed feed-forward parts are.
    """
    starts = {min(each.layers) for each in used if each.layers}
    for each in used:
        if each.layers and each.group.listed_numbers is not None:
            starts |= each.layers.keys()
    yield from ((start,) for start in starts if start >= 0)
    stacked = sorted(start for start in starts if start < 0)
    yield from ((stacked[0], other) for other in stacked)
