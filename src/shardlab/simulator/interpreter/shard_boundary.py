"""The boundary of a shard_map: inputs are sharded by `in_specs`, outputs gathered by `out_specs`.

Gathering is lazy. The backward pass of a shard_map is a second shard_map that takes the residuals
of the first, and JAX passes each residual as one global array over all devices: a weight that every
device shares would be copied once per device. A `ShardedOutput` that goes straight into a shard_map
with the same spec skips the gather, so the residual stays the one copy it is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from typing import Any

import jax.numpy as jnp
from jax import lax

from shardlab.errors import CannotSimulate
from shardlab.simulator.interpreter.stacked_array import (
    MeshAxes,
    StackedArray,
    arrange_dims,
    broadcast_over,
    move_before_dim,
)
from shardlab.simulator.interpreter.step_observer import ObservedArray


def spec_entries(spec: Any) -> list[tuple[str, ...]]:
    """Return the mesh axes that `spec` assigns to each dimension it mentions."""
    # JAX 0.10 does not let a PartitionSpec with `unreduced` axes be iterated, only `partitions`.
    partitions = getattr(spec, "partitions", spec)
    return [
        () if entry is None else (tuple(entry) if isinstance(entry, (tuple, list)) else (entry,))
        for entry in partitions
    ]


def spec_axes(spec: Any) -> frozenset[str]:
    """Return the mesh axes that shard any dimension in `spec`."""
    return frozenset(name for entry in spec_entries(spec) for name in entry)


def shard_input(value: StackedArray, spec: Any, axes: MeshAxes) -> StackedArray:
    """Give each device its shard: reshape every sharded dimension into (device axes, local)."""
    shape: list[int] = []
    dims: list[str | int] = []
    entries = spec_entries(spec)
    for dim, size in zip(value.dims, value.array.shape, strict=True):
        names = entries[dim] if isinstance(dim, int) and dim < len(entries) else ()
        names = axes.drop_size_one(names)
        # Divisibility needs no check: jax.shard_map has rejected uneven shards while tracing.
        _reject_sharded_twice(value, names)
        shape += [axes.sizes[name] for name in names] + [size // axes.size(names)]
        dims += [*names, dim]
    return StackedArray.from_dims(lax.reshape(value.array, tuple(shape)), dims) if dims else value


def _reject_sharded_twice(value: StackedArray, names: Collection[str]) -> None:
    """Reject sharding over an axis that an outer shard_map shards over, as JAX's lowering does."""
    for name in names:
        if name in value.device_axes:
            raise CannotSimulate(
                f"A nested shard_map shards an array over mesh axis '{name}' a second time.",
                where=f"the outer shard_map is already manual over '{name}'",
                fix="JAX itself creates such specs for the gradient of a nested shard_map and then "
                "cannot compile it; take the gradient inside the outer body.",
            )


def gather_output(value: StackedArray, spec: Any, inner: MeshAxes) -> StackedArray:
    """Concatenate the shards into the global array: the inverse of `shard_input`.

    Newly manual axes that `spec` does not mention are gone already (see `replicas.finish_output`).
    """
    for local_dim, names in enumerate(spec_entries(spec)):
        names = inner.drop_size_one(names)
        # Merging removes device axes only, so the numbers of the local dims stay valid.
        if names:
            value = _merge_device_axes(move_before_dim(value, names, local_dim, inner), names)
    return value


def _merge_device_axes(value: StackedArray, names: tuple[str, ...]) -> StackedArray:
    """Merge the device axes `names` into the local dimension that follows them."""
    start = value.device_axes[names[0]]
    shape = value.array.shape
    end = start + len(names) + 1
    array = lax.reshape(value.array, (*shape[:start], math.prod(shape[start:end]), *shape[end:]))
    dims = [dim for dim in value.dims if dim not in names]
    return StackedArray.from_dims(array, dims)


def select_first_replica(value: StackedArray, names: Collection[str]) -> StackedArray:
    """Take the copy of the first device along each of `names`."""
    for name in names:
        if name in value.device_axes:
            position = value.device_axes[name]
            array = lax.index_in_dim(value.array, 0, position, keepdims=False)
            dims = [dim for dim in value.dims if dim != name]
            value = StackedArray.from_dims(array, dims)
    return value


def place_partial_sum(value: StackedArray, names: Collection[str], axes: MeshAxes) -> StackedArray:
    """Return partial sums over `names` that add up to `value`.

    The first device gets the total and the others zeros: any split is legal for an `unreduced`
    array, and this one adds no rounding.
    """
    for name in axes.drop_size_one(axes.in_mesh_order(names)):
        stacked = broadcast_over(value, [name], axes)
        is_first = StackedArray(jnp.arange(axes.sizes[name]) == 0, {name: 0})
        mask = arrange_dims(is_first, stacked.dims, stacked.array.shape)
        array = jnp.where(mask, stacked.array, jnp.zeros_like(stacked.array))
        value = StackedArray(array, stacked.device_axes)
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardedOutput:
    """An output of a shard_map as shards, gathered only if the global array is needed."""

    shards: StackedArray
    spec: Any
    inner: MeshAxes
    newly_manual: frozenset[str]
    value_id: int | None = None  # of the global array, if the program is observed

    def materialize(self) -> StackedArray:
        """Return the global array."""
        gathered = gather_output(self.shards, self.spec, self.inner)
        if self.value_id is None:
            return gathered
        return ObservedArray(gathered.array, gathered.device_axes, self.value_id)

    def matches(self, spec: Any, inner: MeshAxes, newly_manual: frozenset[str]) -> bool:
        """Return whether sharding the global array by `spec` gives exactly these shards."""
        return (
            _trim_entries(self.spec) == _trim_entries(spec)
            # The global form of an unreduced array is its sum: the partial sums are not kept.
            and not (self.spec.unreduced or spec.unreduced)
            and dict(self.inner.sizes) == dict(inner.sizes)
            and self.newly_manual == newly_manual
        )

    def with_array(self, array: Any) -> ShardedOutput:
        return dataclasses.replace(self, shards=StackedArray(array, self.shards.device_axes))


def _trim_entries(spec: Any) -> list[tuple[str, ...]]:
    """Return the entries without trailing empty ones: P('data') and P('data', None) are equal."""
    entries = spec_entries(spec)
    while entries and not entries[-1]:
        entries.pop()
    return entries
