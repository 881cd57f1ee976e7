"""Collectives that send unchanged values between devices: ppermute, pbroadcast, axis_index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from shardlab import _jax
from shardlab.errors import DuplicatePermutation, PermutationOrder, PermutationRange
from shardlab.sharding.mesh import mesh_text
from shardlab.simulator.interpreter.rules.reductions import mesh_axis_names
from shardlab.simulator.interpreter.stacked_array import (
    MeshAxes,
    StackedArray,
    merge_to_front,
    split_from_front,
)

_MAX_PAIRS_IN_ERROR = 64


def ppermute(
    axes: MeshAxes, value: StackedArray, *, axis_name: Any, perm: Any, **_: Any
) -> StackedArray:
    """Send along (source, destination) pairs; a device that receives nothing gets zeros."""
    # Size 1 first: such an axis does not change the numbering, so its order is not ambiguous.
    names = axes.drop_size_one(mesh_axis_names(axis_name))
    if names != axes.in_mesh_order(names):
        names = _resolve_axis_order(axes, names)
    n_devices = axes.size(names)
    source = _source_devices(perm, n_devices)
    varying = [n for n in names if n in value.device_axes]
    # A replicated value that every device receives from some device stays as it is.
    if not varying and (source >= 0).all():
        return value
    array, rest = merge_to_front(value, names, axes)
    shift = int(source[0])
    if (source == (np.arange(n_devices) + shift) % n_devices).all() and shift >= 0:
        # A rotation is two slices, several times cheaper than a gather on XLA's CPU backend.
        out = jnp.concatenate([array[shift:], array[:shift]]) if shift else array
    else:
        out = array[np.maximum(source, 0)]
        receives = (source >= 0).reshape((-1,) + (1,) * (array.ndim - 1))
        if not receives.all():
            out = jnp.where(receives, out, jnp.zeros_like(out))
    return split_from_front(out, names, rest, axes)


def _resolve_axis_order(axes: MeshAxes, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the axes in the order in which this JAX numbers devices.

    JAX 0.10 numbers devices in mesh order whatever order the axes were written in. JAX 0.12 raises
    if the order differs, unless `jax_raise_on_ppermute_sort_diff` is off, and then follows it.
    """
    match _jax.ppermute_order():
        case "refused":
            mesh_order = axes.in_mesh_order(names)
            raise PermutationOrder(
                f"ppermute over {names} does not follow the axis order of the mesh, {mesh_order}: "
                "its device numbers are ambiguous.",
                where=f"mesh {mesh_text(axes.sizes.items())}",
                fix="name the axes in mesh order, or use the order as written: "
                "jax.config.update('jax_raise_on_ppermute_sort_diff', False).",
            )
        case "mesh":
            return axes.in_mesh_order(names)
        case _:
            return names


def _source_devices(perm: Any, n_devices: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return for each device the one it receives from, or -1; negative ids count from the end."""
    out_of_range = sorted({int(i) for pair in perm for i in pair if int(i) >= n_devices})
    if out_of_range:
        raise PermutationRange(
            f"ppermute index out of range: it names device {out_of_range[0]}, but this mesh has "
            f"{n_devices} devices along its axes, numbered from 0.",
            where=f"the pairs {_pairs_text(perm)}",
            fix="take the number of devices from jax.lax.axis_size, such as "
            "[(i, (i + 1) % n) for i in range(n)].",
        )
    pairs = [(int(s) % n_devices, int(d) % n_devices) for s, d in perm]
    sides = {"sources": [s for s, _ in pairs], "destinations": [d for _, d in pairs]}
    for side, devices in sides.items():
        duplicates = sorted(d for d, count in Counter(devices).items() if count > 1)
        if duplicates:
            raise DuplicatePermutation(
                f"ppermute sources and destinations must be unique, got {_pairs_text(perm)}.",
                where=f"device {duplicates[0]} is among the {side} twice",
                fix="give each device at most one source and one destination; "
                "to send one value to many devices use all_gather or pbroadcast.",
            )
    source = np.full(n_devices, -1)
    for s, d in pairs:
        source[d] = s
    return source


def _pairs_text(perm: Any) -> str:
    """Return the pairs as text; of many only the first ones."""
    pairs = tuple(perm)
    if len(pairs) <= _MAX_PAIRS_IN_ERROR:
        return f"{pairs}"
    return f"({', '.join(map(str, pairs[:8]))}, ...), {len(pairs):,} pairs"


def pbroadcast(
    axes: MeshAxes, value: StackedArray, *, axis_name: Any, source: int, **_: Any
) -> StackedArray:
    names = mesh_axis_names(axis_name)
    if not any(n in value.device_axes for n in names):
        return value
    array, rest = merge_to_front(value, axes.drop_size_one(names), axes)
    return StackedArray.from_dims(lax.index_in_dim(array, source, 0, keepdims=False), rest)


def axis_index(axes: MeshAxes, *, axis_name: Any, **_: Any) -> StackedArray:
    names = axes.drop_size_one(mesh_axis_names(axis_name))
    if not names:
        return StackedArray(jnp.zeros((), jnp.int32))
    return split_from_front(jnp.arange(axes.size(names), dtype=jnp.int32), names, (), axes)


PERMUTATIONS: dict[str, Callable[..., StackedArray]] = {
    "ppermute": ppermute,
    "pbroadcast": pbroadcast,
}
