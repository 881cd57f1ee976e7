"""psum, pmax and pmin: device axes are reduced like any other dimension of the array.

A value without a device axis for a mesh axis is replicated over it: a sum multiplies it by the
number of devices, a maximum leaves it alone.

`axis_index_groups` restricts a collective to groups of devices. Groups of one size are the rows of
a mesh (group, member): the devices are put into that order, the collective runs over the axis
`member`, and the devices go back to their original order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from shardlab.simulator.interpreter.stacked_array import (
    MeshAxes,
    StackedArray,
    broadcast_over,
    merge_to_front,
    split_from_front,
)

Groups = Sequence[Sequence[int]]
Rule = Callable[[MeshAxes, StackedArray, Sequence[str]], StackedArray]
ReduceDims = Callable[[Any, tuple[int, ...]], Any]

# Temporary mesh axes; the NUL keeps them apart from any name that a user's mesh can have.
_GROUP, _MEMBER = "\0group", "\0member"


def apply_within_groups(
    axes: MeshAxes, value: StackedArray, names: Sequence[str], groups: Groups, rule: Rule
) -> StackedArray:
    """Apply `rule(axes, value, names)` to each group separately; all groups have the same size."""
    n_members = len(groups[0])
    order = np.concatenate([np.array(group) for group in groups])
    inner = axes.with_axis(_GROUP, len(groups)).with_axis(_MEMBER, n_members)
    array, rest = merge_to_front(value, names, axes)
    grouped = split_from_front(array[order], (_GROUP, _MEMBER), rest, inner)
    # A reduction drops the axis `member`; every member gets its own copy of the result again.
    out = broadcast_over(rule(inner, grouped, (_MEMBER,)), (_GROUP, _MEMBER), inner)
    array, rest = merge_to_front(out, (_GROUP, _MEMBER), inner)
    # argsort of a permutation is its inverse.
    return split_from_front(array[np.argsort(order)], names, rest, axes)


def mesh_axis_names(axes_param: Any) -> tuple[str, ...]:
    """Return the mesh axes in a collective's axes parameter, without positional (vmapped) ones."""
    entries = axes_param if isinstance(axes_param, (tuple, list)) else (axes_param,)
    return tuple(a for a in entries if not isinstance(a, int))


def psum(axes: MeshAxes, value: StackedArray, names: Sequence[str]) -> StackedArray:
    return _reduce_device_axes(multiply_by_replicas(axes, value, names), names, _sum_dims)


def pmax(axes: MeshAxes, value: StackedArray, names: Sequence[str]) -> StackedArray:
    return _reduce_device_axes(value, names, jnp.max)


def pmin(axes: MeshAxes, value: StackedArray, names: Sequence[str]) -> StackedArray:
    return _reduce_device_axes(value, names, jnp.min)


def multiply_by_replicas(axes: MeshAxes, value: StackedArray, names: Sequence[str]) -> StackedArray:
    """Multiply by the number of equal copies that a sum over `names` would add up."""
    n_copies = axes.size(n for n in names if n not in value.device_axes)
    if n_copies == 1:
        return value
    dtype = value.array.dtype
    if jnp.issubdtype(dtype, jnp.integer):
        # Integer sums wrap around; wrapping the factor first gives the same result.
        factor = np.int64(n_copies).astype(dtype)
        return StackedArray(value.array * factor, value.device_axes)
    # Some narrow floats cannot represent the factor itself (bfloat16 has no 257).
    wide = dtype if dtype.itemsize >= 4 else jnp.float32
    product = value.array.astype(wide) * jnp.asarray(n_copies, wide)
    return StackedArray(product.astype(dtype), value.device_axes)


def reduction_rule(rule: Rule, reduce_dims: ReduceDims) -> Any:
    """Adapt a reduction to the parameters of its primitive: vmapped axes, and groups."""

    # `axes` is also the name of a parameter of the primitive.
    def apply_reduction(axes_: MeshAxes, value: StackedArray, **params: Any) -> StackedArray:
        names = mesh_axis_names(params["axes"])
        # vmap(..., axis_name=...) over a collective leaves the mapped axis as an int in `axes`.
        local_dims = [a for a in params["axes"] if isinstance(a, int)]
        value = _reduce_local_dims(reduce_dims, value, local_dims)
        groups: Groups | None = params.get("axis_index_groups")
        if groups is None:
            return rule(axes_, value, names)
        if len({len(group) for group in groups}) > 1:
            return _reduce_uneven_groups(axes_, value, names, groups, reduce_dims)
        return apply_within_groups(axes_, value, names, groups, rule)

    return apply_reduction


def _sum_dims(array: Any, positions: tuple[int, ...]) -> Any:
    # jnp.sum promotes small integers to int32; psum keeps the dtype.
    return jnp.sum(array, positions, dtype=array.dtype)


def _reduce_device_axes(
    value: StackedArray, names: Sequence[str], reduce_dims: ReduceDims
) -> StackedArray:
    positions = tuple(value.device_axes[n] for n in names if n in value.device_axes)
    if not positions:
        return value
    dims = [dim for dim in value.dims if dim not in names]
    return StackedArray.from_dims(reduce_dims(value.array, positions), dims)


def _reduce_local_dims(
    reduce_dims: ReduceDims, value: StackedArray, local_dims: Sequence[int]
) -> StackedArray:
    if not local_dims:
        return value
    positions = tuple(value.position_of_local(d) for d in local_dims)
    remaining = [p for p in range(value.array.ndim) if p not in positions]
    device_axes = {name: remaining.index(p) for name, p in value.device_axes.items()}
    return StackedArray(reduce_dims(value.array, positions), device_axes)


def _reduce_uneven_groups(
    axes: MeshAxes,
    value: StackedArray,
    names: Sequence[str],
    groups: Groups,
    reduce_dims: ReduceDims,
) -> StackedArray:
    """Reduce groups of different sizes, which are no rows of a mesh, one after the other."""
    array, rest = merge_to_front(value, names, axes)
    out = jnp.zeros_like(array)
    for group in groups:
        members = np.array(group)
        out = out.at[members].set(reduce_dims(array[members], (0,))[None])
    return split_from_front(out, names, rest, axes)


REDUCTIONS: dict[str, Callable[..., StackedArray]] = {
    "psum": reduction_rule(psum, _sum_dims),
    "psum_invariant": reduction_rule(psum, _sum_dims),
    "unreduced_psum": reduction_rule(psum, _sum_dims),
    "pmax": reduction_rule(pmax, jnp.max),
    "pmin": reduction_rule(pmin, jnp.min),
    "unreduced_pmax": reduction_rule(pmax, jnp.max),
    "unreduced_pmin": reduction_rule(pmin, jnp.min),
}
