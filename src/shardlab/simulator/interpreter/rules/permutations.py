"""Collectives that move whole values between devices: ppermute and pbroadcast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from shardlab import _jax
from shardlab.errors import DuplicatePermutation, PermutationOrder, PermutationRange
from shardlab.simulator.interpreter.rules.reductions import names_in
from shardlab.simulator.interpreter.stacked_array import (
    MeshAxes,
    StackedArray,
    from_slots,
    in_front,
    out_of_front,
)


def ppermute(
    axes: MeshAxes, value: StackedArray, *, axis_name: Any, perm: Any, **_: Any
) -> StackedArray:
    """Send along (source, destination) pairs; a device that receives nothing gets zeros.

    JAX 0.10 numbers devices in mesh order whatever order the axes were written in; JAX 0.12
    refuses another order, unless told not to, and then follows it.
    """
    names = axes.drop_size_one(names_in(axis_name))
    if names != axes.in_mesh_order(names):
        names = _in_another_order(axes, names)
    n_devices = axes.size(names)
    source = _sources(perm, n_devices)
    varying = [n for n in names if n in value.device_axes]
    if not varying and (source >= 0).all():
        return value
    array, rest = in_front(value, names, axes)
    shift = int(source[0])
    if (source == (np.arange(n_devices) + shift) % n_devices).all() and shift >= 0:
        # A rotation is two slices, several times cheaper than a gather.
        out = jnp.concatenate([array[shift:], array[:shift]]) if shift else array
    else:
        out = array[np.maximum(source, 0)]
        keep = (source >= 0).reshape((-1,) + (1,) * (array.ndim - 1))
        if not keep.all():
            out = jnp.where(keep, out, jnp.zeros_like(out))
    return out_of_front(out, names, rest, axes)


def _in_another_order(axes: MeshAxes, names: tuple[str, ...]) -> tuple[str, ...]:
    match _jax.ppermute_order():
        case "refused":
            raise PermutationOrder(
                f"ppermute over {names} is in another order than the mesh, {axes.in_mesh_order(names)}: "
                "its device numbers could be meant either way.",
                where=f"mesh {', '.join(f'{n}={size}' for n, size in axes.sizes.items())}",
                fix="name the axes in mesh order, or say that you mean the order written: "
                "jax.config.update('jax_raise_on_ppermute_sort_diff', False).",
            )
        case "mesh":
            return axes.in_mesh_order(names)
        case _:
            return names


def _sources(perm: Any, n_devices: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return, by device, the one it receives from, or -1; negative numbers count from the end."""
    beyond = sorted({int(i) for pair in perm for i in pair if int(i) >= n_devices})
    if beyond:
        raise PermutationRange(
            f"ppermute index out of range: it names device {beyond[0]}, and this mesh has "
            f"{n_devices} along its axes, counted from 0.",
            where=f"the pairs {tuple(perm)}",
            fix="take the number of devices from jax.lax.axis_size, such as "
            "[(i, (i + 1) % n) for i in range(n)].",
        )
    pairs = [(int(s) % n_devices, int(d) % n_devices) for s, d in perm]
    sides = {"sources": [s for s, _ in pairs], "destinations": [d for _, d in pairs]}
    for what, devices in sides.items():
        twice = sorted({d for d in devices if devices.count(d) > 1})
        if twice:
            raise DuplicatePermutation(
                f"ppermute sources and destinations must be unique, got {tuple(perm)}.",
                where=f"device {twice[0]} is among the {what} twice",
                fix="give each device at most one source and one destination; "
                "to send one value to many devices use all_gather or pbroadcast.",
            )
    source = np.full(n_devices, -1)
    for s, d in pairs:
        source[d] = s
    return source


def pbroadcast(
    axes: MeshAxes, value: StackedArray, *, axis_name: Any, source: int, **_: Any
) -> StackedArray:
    names = names_in(axis_name)
    if not any(n in value.device_axes for n in names):
        return value
    array, rest = in_front(value, axes.drop_size_one(names), axes)
    return from_slots(lax.index_in_dim(array, source, 0, keepdims=False), rest)


def axis_index(axes: MeshAxes, *, axis_name: Any, **_: Any) -> StackedArray:
    names = axes.drop_size_one(names_in(axis_name))
    if not names:
        return StackedArray(jnp.zeros((), jnp.int32))
    return out_of_front(jnp.arange(axes.size(names), dtype=jnp.int32), names, (), axes)


PERMUTATIONS: dict[str, Callable[..., StackedArray]] = {
    "ppermute": ppermute,
    "pbroadcast": pbroadcast,
}
