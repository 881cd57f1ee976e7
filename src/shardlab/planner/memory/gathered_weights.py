"""Gathered weights: what FSDP all-gathers of one layer while a device computes it.

Tensors that are sharded over mesh axes that also shard the batch are gathered along these axes
before use; shards over tensor axes, and experts over expert axes, stay. Layers run one after the
other, and so do the embedding tables before and after them: the largest counts, once. XLA may
prefetch the next layer at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

from shardlab.planner.memory.device_bytes import device_array, parameter_dtype
from shardlab.planner.memory.dtype_policy import DtypePolicy
from shardlab.planner.memory.workload_shards import AxisShards
from shardlab.planner.rules.matching import ShardedGroup
from shardlab.planner.strategies.axis_roles import batch_axes, mesh_axis_roles
from shardlab.planner.strategies.dim_meaning import dim_meanings_of
from shardlab.planner.strategies.layer_stack import find_stack_position
from shardlab.planner.tensor_group import TensorGroup
from shardlab.sharding.dtype import Dtype
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec


@dataclass(frozen=True)
class _GatheredGroup:
    """Bytes of a group that are gathered for each of its layers."""

    group: TensorGroup
    n_bytes: int  # of one tensor, or of one layer's slice of a stacked one
    # Layer -> number of tensors; None: not in a layer. An array that stacks n layers has the single
    # key -n, so that it never equals the number of a real layer.
    tensors_by_layer: Mapping[int, int] | None

    def n_tensors_in(self, layers: Collection[int]) -> int:
        """Return how many of its tensors are in use while any of these layers is computed."""
        if not self.tensors_by_layer:
            return 1
        return max((self.tensors_by_layer.get(layer, 0) for layer in layers), default=0)


@dataclass(frozen=True, kw_only=True)
class GatheredWeights:
    """Bytes of weights that are gathered at one time: of a layer, and of an embedding table."""

    layer: int = 0
    table: int = 0
    layer_text: str = ""  # what the layer's bytes are, for a formula
    table_text: str = ""


def gather_weights(
    sharded_groups: Iterable[ShardedGroup],
    mesh: Mesh,
    policy: DtypePolicy,
    dtype: Dtype,
    *,
    with_text: bool = False,
) -> GatheredWeights:
    """Return the largest layer and table as they are gathered; 0 if no batch axis shards weights.

    They travel in `dtype`, in which they are multiplied, if that is narrower than the stored one.

    >>> from shardlab.planner.models.load import load_model
    >>> from shardlab.planner.strategies.strategy import parse_strategy, shard_model
    >>> from shardlab.sharding.dtype import parse_dtype
    >>> mesh = Mesh(fsdp=8)
    >>> sharded = shard_model(load_model("llama3-70b"), parse_strategy("fsdp"), mesh)
    >>> gather_weights(sharded, mesh, DtypePolicy(), parse_dtype("bf16")).table
    2101346304
    """
    gathered = _gathered_groups(sharded_groups, mesh, policy, dtype)
    inside = [_bytes_in_layers(gathered, layers) for layers in _representative_layers(gathered)]
    outside = [(member.n_bytes, [member]) for member in gathered if member.tensors_by_layer is None]
    layer, layer_members = max(inside, key=itemgetter(0), default=(0, []))
    table, table_members = max(outside, key=itemgetter(0), default=(0, []))
    if not with_text:
        return GatheredWeights(layer=layer, table=table)
    return GatheredWeights(
        layer=layer,
        table=table,
        layer_text=_members_text(layer_members, mesh),
        table_text=_members_text(table_members, mesh),
    )


def _members_text(members: Sequence[_GatheredGroup], mesh: Mesh) -> str:
    if not members:
        return ""
    axes = AxisShards(
        tuple((name, mesh.shape[name]) for name in batch_axes(mesh) if mesh.shape[name] > 1)
    )
    largest = max(
        members,
        key=lambda member: member.n_bytes * max((member.tensors_by_layer or {0: 1}).values()),
    )
    count = f"{len(members)} kinds of tensors of one layer" if len(members) > 1 else "one tensor"
    return (
        f"{count}, gathered along {axes}, other mesh axes as stored; largest: "
        f"{largest.group.name} {list(largest.group.shape)}"
    )


def _gathered_groups(
    sharded_groups: Iterable[ShardedGroup], mesh: Mesh, policy: DtypePolicy, dtype: Dtype
) -> list[_GatheredGroup]:
    roles = mesh_axis_roles(mesh)
    # fsdp shards weights over context axes too.
    token_axes = (*batch_axes(mesh), *roles.get("sequence", ()))
    batch = frozenset(name for name in token_axes if mesh.shape[name] > 1)
    expert_axes = roles.get("expert", ())
    gathered = []
    for sharded in sharded_groups if batch else ():
        group = sharded.group
        # Experts stay on their devices (the tokens travel), so expert axes do not gather them.
        is_expert = expert_axes and "experts" in (dim_meanings_of(group) or ())
        gather_axes = batch.difference(expert_axes if is_expert else ())
        if not gather_axes.isdisjoint(sharded.spec.mesh_axes):
            stored = parameter_dtype(group, policy)
            array = device_array(
                group.shape,
                min(stored, dtype, key=lambda candidate: candidate.bits),
                _without_axes(sharded.spec, gather_axes),
                mesh,
                kind="parameters",
                name="",
                n_tensors=1,
            )
            # `scan` gathers one layer's slice of a stacked array at a time.
            n_bytes = array.bytes_per_device // _n_stacked_layers(group, array.shard_shape)
            gathered.append(_GatheredGroup(group, n_bytes, _tensors_by_layer(group)))
    return gathered


@lru_cache(maxsize=4096)
def _without_axes(spec: Spec, names: frozenset[str]) -> Spec:
    """Return the spec without these mesh axes."""
    return Spec(*(tuple(name for name in entry if name not in names) for entry in spec.axes))


def _n_stacked_layers(group: TensorGroup, shape: tuple[int, ...]) -> int:
    """Return how many layers an array, or a shard of it, stacks."""
    axes = dim_meanings_of(group) or ()
    return shape[axes.index("layers")] or 1 if "layers" in axes else 1


def _tensors_by_layer(group: TensorGroup) -> Mapping[int, int] | None:
    # Stored in the group's own __dict__: a search over meshes asks thousands of times, and the
    # cache then lives exactly as long as the group.
    cache: dict[str, Any] = group.__dict__
    if "_tensors_by_layer" not in cache:
        cache["_tensors_by_layer"] = _count_tensors_by_layer(group)
    counts: Mapping[int, int] | None = cache["_tensors_by_layer"]
    return counts


def _count_tensors_by_layer(group: TensorGroup) -> Mapping[int, int] | None:
    position = find_stack_position(group, "layers")
    if position is None:
        n_layers = _n_stacked_layers(group, group.shape)
        return {-n_layers: group.n_tensors} if "layers" in (dim_meanings_of(group) or ()) else None
    if group.listed_numbers is not None:
        return Counter(int(numbers[position]) for numbers in group.listed_numbers)
    tensors_per_layer = group.n_tensors // len(group.ranges[position])
    return dict.fromkeys(group.ranges[position], tensors_per_layer)


def _bytes_in_layers(
    gathered: Sequence[_GatheredGroup], layers: Collection[int]
) -> tuple[int, list[_GatheredGroup]]:
    members = [
        member
        for member in gathered
        if member.tensors_by_layer is not None and member.n_tensors_in(layers)
    ]
    return sum(member.n_bytes * member.n_tensors_in(layers) for member in members), members


def _representative_layers(gathered: Sequence[_GatheredGroup]) -> Iterator[tuple[int, ...]]:
    """Yield one layer of each kind, so that not every layer has to be summed."""
    # The tensors of a layer differ from those of the layer before it only where a group begins.
    starts = {min(member.tensors_by_layer) for member in gathered if member.tensors_by_layer}
    for member in gathered:
        if member.tensors_by_layer and member.group.listed_numbers is not None:
            starts |= member.tensors_by_layer.keys()
    yield from ((start,) for start in starts if start >= 0)
    # Of stacked arrays those with most layers (attention, norms) are in every layer, together with
    # one of the others: the dense or the mixture-of-experts feed-forward block.
    stacked = sorted(start for start in starts if start < 0)
    yield from ((stacked[0], start) for start in stacked)
