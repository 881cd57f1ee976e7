"""psum, pmax, pmin: what stands on the device axes is reduced where it stands.

A value that does not vary over a mesh axis is there in equal copies: a sum multiplies it, a
maximum leaves it alone.

`axis_index_groups`: a collective within groups of devices, each group on its own.

Groups of one size are the rows of a mesh (group, member). So the devices are put into that order,
the collective runs over the axis `member`, and the devices go back to where they stood.
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
    from_slots,
    in_front,
    out_of_front,
)

Groups = Sequence[Sequence[int]]

# Axes that pass through; no person's mesh axis can have such a name.
_GROUP, _MEMBER = "\0group", "\0member"


def within_groups(
    axes: MeshAxes,
    value: StackedArray,
    names: Sequence[str],
    groups: Groups,
    rule: Callable[[MeshAxes, StackedArray, Sequence[str]], StackedArray],
) -> StackedArray:
    """Apply `rule(axes, value, names)` to each group alone; all groups have one size."""
    n_members = len(groups[0])
    order = np.concatenate([np.array(group) for group in groups])
    inner = axes.with_axis(_GROUP, len(groups)).with_axis(_MEMBER, n_members)
    array, rest = in_front(value, names, axes)
    grouped = out_of_front(array[order], (_GROUP, _MEMBER), rest, inner)
    out = broadcast_over(rule(inner, grouped, (_MEMBER,)), (_GROUP, _MEMBER), inner)
    array, rest = in_front(out, (_GROUP, _MEMBER), inner)
    return out_of_front(array[np.argsort(order)], names, rest, axes)


Reduce = Callable[[Any, tuple[int, ...]], Any]


def names_in(axes_param: Any) -> tuple[str, ...]:
    """Return the mesh axes of a collective's axes parameter, without positional (vmapped) ones."""
    entries = axes_param if isinstance(axes_param, (tuple, list)) else (axes_param,)
    return tuple(a for a in entries if not isinstance(a, int))


def psum(axes: MeshAxes, value: StackedArray, names: Sequence[str]) -> StackedArray:
    return _drop(times_copies(axes, value, names), names, _sum)


def pmax(axes: MeshAxes, value: StackedArray, names: Sequence[str]) -> StackedArray:
    return _drop(value, names, jnp.max)


def pmin(axes: MeshAxes, value: StackedArray, names: Sequence[str]) -> StackedArray:
    return _drop(value, names, jnp.min)


def times_copies(axes: MeshAxes, value: StackedArray, names: Sequence[str]) -> StackedArray:
    """Multiply by the number of equal copies that a sum over `names` would add up."""
    n_copies = axes.size(n for n in names if n not in value.device_axes)
    if n_copies == 1:
        return value
    dtype = value.array.dtype
    if jnp.issubdtype(dtype, jnp.integer):
        # A sum wraps round, and so does the number of its terms.
        return StackedArray(value.array * np.int64(n_copies).astype(dtype), value.device_axes)
    # A narrow float may be too narrow for the number itself (bfloat16 has no 257).
    wide = dtype if dtype.itemsize >= 4 else jnp.float32
    product = value.array.astype(wide) * jnp.asarray(n_copies, wide)
    return StackedArray(product.astype(dtype), value.device_axes)


def reduction(
    rule: Callable[[MeshAxes, StackedArray, Sequence[str]], StackedArray], reduce: Reduce
) -> Any:
    """Adapt a reduction to the parameters of its primitive: vmapped axes, and groups."""

    def adapted(axes_: MeshAxes, value: StackedArray, **params: Any) -> StackedArray:
        names = names_in(params["axes"])
        value = _reduce_local(reduce, value, [a for a in params["axes"] if isinstance(a, int)])
        groups: Groups | None = params.get("axis_index_groups")
        if groups is None:
            return rule(axes_, value, names)
        if len({len(group) for group in groups}) > 1:
            return _in_uneven_groups(axes_, value, names, groups, reduce)
        return within_groups(axes_, value, names, groups, rule)

    return adapted


def _sum(array: Any, positions: tuple[int, ...]) -> Any:
    return jnp.sum(array, positions, dtype=array.dtype)


def _drop(value: StackedArray, names: Sequence[str], reduce: Reduce) -> StackedArray:
    positions = tuple(value.device_axes[n] for n in names if n in value.device_axes)
    if not positions:
        return value
    slots = [slot for slot in value.slots if slot not in names]
    return from_slots(reduce(value.array, positions), slots)


def _reduce_local(reduce: Reduce, value: StackedArray, local_axes: Sequence[int]) -> StackedArray:
    if not local_axes:
        return value
    positions = tuple(value.position_of_local(a) for a in local_axes)
    kept = [p for p in range(value.array.ndim) if p not in positions]
    at = {name: kept.index(p) for name, p in value.device_axes.items()}
    return StackedArray(reduce(value.array, positions), at)


def _in_uneven_groups(
    axes: MeshAxes, value: StackedArray, names: Sequence[str], groups: Groups, reduce: Reduce
) -> StackedArray:
    array, rest = in_front(value, names, axes)
    out = jnp.zeros_like(array)
    for group in groups:
        members = np.array(group)
        out = out.at[members].set(reduce(array[members], (0,))[None])
    return out_of_front(out, names, rest, axes)


REDUCTIONS: dict[str, Callable[..., StackedArray]] = {
    "psum": reduction(psum, _sum),
    "psum_invariant": reduction(psum, _sum),
    "unreduced_psum": reduction(psum, _sum),
    "pmax": reduction(pmax, jnp.max),
    "pmin": reduction(pmin, jnp.min),
    "unreduced_pmax": reduction(pmax, jnp.max),
    "unreduced_pmin": reduction(pmin, jnp.min),
}
