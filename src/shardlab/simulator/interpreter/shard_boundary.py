"""The edge of a shard_map: global arrays are cut by the specs on entry and joined on exit."""

from __future__ import annotations

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
    bring_before,
    broadcast_over,
    from_slots,
)


def spec_entries(spec: Any) -> list[tuple[str, ...]]:
    """Return the mesh axes of each array axis that `spec` mentions."""
    partitions = getattr(spec, "partitions", spec)
    return [
        () if entry is None else (tuple(entry) if isinstance(entry, (tuple, list)) else (entry,))
        for entry in partitions
    ]


def spec_axes(spec: Any) -> frozenset[str]:
    return frozenset(name for entry in spec_entries(spec) for name in entry)


def shard_input(value: StackedArray, spec: Any, axes: MeshAxes) -> StackedArray:
    """Give each device its slice: split every array axis that `spec` shards into (mesh, local)."""
    shape: list[int] = []
    slots: list[str | int] = []
    parts = spec_entries(spec)
    for slot, size in zip(value.slots, value.array.shape, strict=True):
        names = parts[slot] if isinstance(slot, int) and slot < len(parts) else ()
        names = axes.drop_size_one(names)
        _refuse_cut_twice(value, names)
        shape += [axes.sizes[name] for name in names] + [size // axes.size(names)]
        slots += [*names, slot]
    return from_slots(lax.reshape(value.array, tuple(shape)), slots) if slots else value


def _refuse_cut_twice(value: StackedArray, names: Collection[str]) -> None:
    """Refuse to cut over an axis that an outer shard_map has cut over, as JAX's lowering does."""
    for name in names:
        if name in value.device_axes:
            raise CannotSimulate(
                f"A nested shard_map would cut an array over mesh axis '{name}' once more.",
                where=f"the outer shard_map is manual over '{name}' already",
                fix="JAX itself makes such specs for the gradient of a nested shard_map and then "
                "cannot compile it; take the gradient inside of the outer body.",
            )


def gather_output(value: StackedArray, spec: Any, inner: MeshAxes) -> StackedArray:
    """Put the slices together: the inverse of `shard_input`.

    Every new axis that `spec` does not mention has been dealt with before (see replicas).
    """
    for local_axis, names in enumerate(spec_entries(spec)):
        names = inner.drop_size_one(names)
        if names:
            value = _merge(bring_before(value, names, local_axis, inner), names)
    return value


def first_copy(value: StackedArray, names: Collection[str]) -> StackedArray:
    """Keep the copy of the first device along each of `names`."""
    for name in names:
        if name in value.device_axes:
            position = value.device_axes[name]
            array = lax.index_in_dim(value.array, 0, position, keepdims=False)
            slots = [slot for slot in value.slots if slot != name]
            value = from_slots(array, slots)
    return value


def spread_partial_sum(value: StackedArray, names: Collection[str], axes: MeshAxes) -> StackedArray:
    """Return summands over `names` that add up to `value`: all of it on the first device."""
    for name in axes.drop_size_one(axes.in_mesh_order(names)):
        whole = broadcast_over(value, [name], axes)
        is_first = StackedArray(jnp.arange(axes.sizes[name]) == 0, {name: 0})
        mask = arrange_dims(is_first, whole.slots, whole.array.shape)
        value = StackedArray(
            jnp.where(mask, whole.array, jnp.zeros_like(whole.array)), whole.device_axes
        )
    return value


def _merge(value: StackedArray, names: tuple[str, ...]) -> StackedArray:
    """Merge the device axes `names` into the local axis that follows them."""
    start = value.device_axes[names[0]]
    shape = value.array.shape
    end = start + len(names) + 1
    array = lax.reshape(value.array, (*shape[:start], math.prod(shape[start:end]), *shape[end:]))
    slots = [slot for slot in value.slots if slot not in names]
    return from_slots(array, slots)
