"""Collectives on explicit device axes.

A value that does not vary over a mesh axis has no device axis for it; each rule says what the
collective does to equal copies too (a psum multiplies, a pmax changes nothing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from shardlab.engine.spread import (
    Axes,
    Slot,
    Spread,
    bring_before,
    from_slots,
    in_front,
    out_of_front,
    vary,
)
from shardlab.errors import DuplicatePermutation

Groups = Sequence[Sequence[int]] | None


def names_in(axes_param: Any) -> tuple[str, ...]:
    """Return the mesh axes of a collective's axes parameter, without positional (vmapped) ones."""
    entries = axes_param if isinstance(axes_param, (tuple, list)) else (axes_param,)
    return tuple(a for a in entries if not isinstance(a, int))


def collective_axes(params: dict[str, Any]) -> tuple[str, ...]:
    """Return the mesh axes over which an equation with these parameters communicates."""
    return names_in(params["axes"] if "axes" in params else params["axis_name"])


# ------------------------------------------------------------------------------- reductions


def _reduction(
    reduce: Callable[[Any, tuple[int, ...]], Any], *, is_sum: bool = False
) -> Callable[..., Spread]:
    def rule(
        axes: Axes, value: Spread, *, axes_param: Any, axis_index_groups: Groups = None
    ) -> Spread:
        names = names_in(axes_param)
        positional = tuple(a for a in axes_param if isinstance(a, int))
        if positional:
            value = _reduce_local(reduce, value, positional)
        if axis_index_groups is not None:
            return _in_groups(axes, value, names, axis_index_groups, reduce)
        if is_sum:
            value = times_copies(axes, value, names)
        return _drop(value, names, reduce)

    return rule


def times_copies(axes: Axes, value: Spread, names: Sequence[str]) -> Spread:
    """Multiply by the number of equal copies that a sum over `names` would add up."""
    n_copies = axes.size(n for n in names if n not in value.at)
    if n_copies == 1:
        return value
    return Spread(value.array * jnp.asarray(n_copies, value.array.dtype), value.at)


def _drop(value: Spread, names: Sequence[str], reduce: Callable[..., Any]) -> Spread:
    positions = tuple(value.at[n] for n in names if n in value.at)
    if not positions:
        return value
    slots = [slot for slot in value.slots if slot not in names]
    return from_slots(reduce(value.array, positions), slots)


def _reduce_local(reduce: Callable[..., Any], value: Spread, local_axes: Sequence[int]) -> Spread:
    positions = tuple(value.local_position(a) for a in local_axes)
    kept = [p for p in range(value.array.ndim) if p not in positions]
    at = {name: kept.index(p) for name, p in value.at.items()}
    return Spread(reduce(value.array, positions), at)


def _in_groups(
    axes: Axes, value: Spread, names: Sequence[str], groups: Groups, reduce: Callable[..., Any]
) -> Spread:
    assert groups is not None
    array, rest = in_front(value, names, axes)
    out = jnp.zeros_like(array)
    for group in groups:
        members = np.array(group)
        out = out.at[members].set(reduce(array[members], (0,))[None])
    return out_of_front(out, names, rest, axes)


def _sum(array: Any, positions: tuple[int, ...]) -> Any:
    return jnp.sum(array, positions, dtype=array.dtype)


psum = _reduction(_sum, is_sum=True)
pmax = _reduction(jnp.max)
pmin = _reduction(jnp.min)

# ----------------------------------------------------------------------- gather and scatter


def all_gather(
    axes: Axes,
    value: Spread,
    *,
    all_gather_dimension: int,
    axis_name: Any,
    axis_index_groups: Groups = None,
    tiled: bool,
    **_: Any,
) -> Spread:
    names = names_in(axis_name)
    if axis_index_groups is not None:
        return _gather_in_groups(
            axes, value, names, axis_index_groups, all_gather_dimension, tiled
        )
    value = bring_before(value, names, all_gather_dimension, axes)
    return _absorb(axes, value, names, tiled)


def _absorb(axes: Axes, value: Spread, names: Sequence[str], tiled: bool) -> Spread:
    """Turn neighbouring device axes into one local axis, merged with the next one if `tiled`."""
    start = value.at[names[0]]
    slots: list[Slot] = list(value.slots)
    shape = list(value.array.shape)
    end = start + len(names) + (1 if tiled else 0)
    shape[start:end] = [axes.size(names) * (shape[end - 1] if tiled else 1)]
    slots[start:end] = [0]
    return from_slots(lax.reshape(value.array, tuple(shape)), slots)


def _gather_in_groups(
    axes: Axes, value: Spread, names: Sequence[str], groups: Any, dimension: int, tiled: bool
) -> Spread:
    array, rest = in_front(value, names, axes)
    members, _ = _membership(groups, axes.size(names))
    # [device, member, *rest]: the member axis becomes local axis number `dimension`.
    gathered = Spread(array[members], {"\0member": 1, "\0device": 0} | _shift(rest, 2))
    gathered = bring_before(gathered, ["\0member"], dimension, _with(axes, members.shape))
    gathered = _absorb(_with(axes, members.shape), gathered, ["\0member"], tiled)
    return _restore(axes, gathered, names)


def psum_scatter(
    axes: Axes,
    value: Spread,
    *,
    scatter_dimension: int,
    axis_name: Any,
    axis_index_groups: Groups = None,
    tiled: bool,
    **_: Any,
) -> Spread:
    names = names_in(axis_name)
    if axis_index_groups is None:
        total = psum(axes, value, axes_param=names)
        return _scatter(axes, total, names, scatter_dimension, tiled)
    members, position = _membership(axis_index_groups, axes.size(names))
    array, rest = in_front(value, names, axes)
    sums = [jnp.sum(array[np.array(g)], 0, dtype=array.dtype) for g in axis_index_groups]
    group_of = np.zeros(axes.size(names), int)
    for number, group in enumerate(axis_index_groups):
        group_of[np.array(group)] = number
    inner = _with(axes, members.shape)
    total = Spread(jnp.stack(sums), {"\0device": 0} | _shift(rest, 1))
    pieces = _scatter(inner, total, ["\0member"], scatter_dimension, tiled)
    front, after = in_front(pieces, ["\0device"], _sized(inner, "\0device", len(sums)))
    at_member = after.index("\0member")
    rows = jnp.moveaxis(front, at_member + 1, 1)[group_of, position]
    rest_slots = [slot for slot in after if slot != "\0member"]
    return out_of_front(rows, names, rest_slots, axes)


def _scatter(
    axes: Axes, value: Spread, names: Sequence[str], dimension: int, tiled: bool
) -> Spread:
    """Split local axis `dimension` into device axes; untiled, nothing of it stays behind."""
    position = value.local_position(dimension)
    shape, slots = list(value.array.shape), list(value.slots)
    sizes = [axes.sizes[name] for name in names]
    tail = [shape[position] // axes.size(names)] if tiled else []
    shape[position : position + 1] = [*sizes, *tail]
    slots[position : position + 1] = [*names, *([dimension] if tiled else [])]
    return from_slots(lax.reshape(value.array, tuple(shape)), slots)


def all_to_all(
    axes: Axes,
    value: Spread,
    *,
    axis_name: Any,
    split_axis: int,
    concat_axis: int,
    axis_index_groups: Groups = None,
    **_: Any,
) -> Spread:
    """Each device cuts `split_axis` in n pieces, sends piece i to device i, and stacks what comes.

    The device axis that was is merged into `concat_axis`, and a new one is cut from `split_axis`.
    """
    names = names_in(axis_name)
    if axis_index_groups is not None:
        return _all_to_all_in_groups(
            axes, value, names, axis_index_groups, split_axis, concat_axis
        )
    array, rest = in_front(value, names, axes)
    n_devices = axes.size(names)
    sized = _sized(_sized(axes, "\0from", n_devices), "\0to", n_devices)
    moving = Spread(array, {"\0from": 0} | _shift(rest, 1))
    moving = _exchange(sized, moving, split_axis, concat_axis)
    front, after = in_front(moving, ["\0to"], sized)
    return out_of_front(front, names, after, axes)


def _exchange(axes: Axes, value: Spread, split_axis: int, concat_axis: int) -> Spread:
    value = _scatter(axes, value, ["\0to"], split_axis, tiled=True)
    value = bring_before(value, ["\0from"], concat_axis, axes)
    return _absorb(axes, value, ["\0from"], tiled=True)


def _all_to_all_in_groups(
    axes: Axes, value: Spread, names: Sequence[str], groups: Any, split: int, concat: int
) -> Spread:
    array, rest = in_front(value, names, axes)
    n_members = len(groups[0])
    order = np.concatenate([np.array(group) for group in groups])
    grouped = array[order].reshape((len(groups), n_members, *array.shape[1:]))
    sized = _sized(_sized(axes, "\0from", n_members), "\0to", n_members)
    sized = _sized(sized, "\0group", len(groups))
    moving = Spread(grouped, {"\0group": 0, "\0from": 1} | _shift(rest, 2))
    moving = _exchange(sized, moving, split, concat)
    front, after = in_front(moving, ["\0group", "\0to"], sized)
    return out_of_front(front[np.argsort(order)], names, after, axes)


# ---------------------------------------------------------------------------- permutations


def ppermute(axes: Axes, value: Spread, *, axis_name: Any, perm: Any, **_: Any) -> Spread:
    """Send along (source, destination) pairs; a device that receives nothing gets zeros.

    JAX's lowering numbers devices in mesh order whatever order the axes were written in.
    """
    names = axes.ordered(names_in(axis_name))
    n_devices = axes.size(names)
    source = _sources(perm, n_devices)
    varying = [n for n in names if n in value.at]
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


def _sources(perm: Any, n_devices: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    pairs = [(int(s) % n_devices, int(d) % n_devices) for s, d in perm]
    for what, devices in (("sources", [s for s, _ in pairs]), ("destinations", [d for _, d in pairs])):
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


def pbroadcast(axes: Axes, value: Spread, *, axis_name: Any, source: int, **_: Any) -> Spread:
    names = names_in(axis_name)
    if not any(n in value.at for n in names):
        return value
    array, rest = in_front(value, names, axes)
    return from_slots(lax.index_in_dim(array, source, 0, keepdims=False), rest)


def axis_index(axes: Axes, *, axis_name: Any, **_: Any) -> Spread:
    names = names_in(axis_name)
    if axes.size(names) == 1:
        return Spread(jnp.zeros((), jnp.int32))
    return out_of_front(jnp.arange(axes.size(names), dtype=jnp.int32), names, (), axes)


def ragged_all_to_all(
    axes: Axes, *values: Spread, axis_name: Any, axis_index_groups: Groups = None, **_: Any
) -> Spread:
    """Row `i` of a device's output comes from whichever chunk it lies in; see `_one_receiver`."""
    names = names_in(axis_name)
    others = {n for v in values for n in v.at if n not in names}
    spread = [vary(v, (*names, *others), axes) for v in values]
    order = (*names, *axes.ordered(others))
    arrays = []
    for value in spread:
        array, rest = in_front(value, order, axes)
        n_other = axes.size(axes.ordered(others))
        arrays.append(array.reshape((axes.size(names), n_other, *array.shape[1:])))
    groups = axis_index_groups or [list(range(axes.size(names)))]
    out = _ragged(arrays, groups)
    out = out.reshape((-1, *out.shape[2:]))
    return out_of_front(out, order, tuple(range(out.ndim - 1)), axes)


def _ragged(arrays: Sequence[Any], groups: Sequence[Sequence[int]]) -> Any:
    operand, output, input_offsets, send_sizes, output_offsets, _ = arrays
    rows = jnp.arange(output.shape[2])
    for group in groups:
        for slot, receiver in enumerate(group):
            for sender in group:
                start = output_offsets[sender, :, slot][:, None]
                size = send_sizes[sender, :, slot][:, None]
                offset = input_offsets[sender, :, slot][:, None]
                inside = (rows >= start) & (rows < start + size)
                take = jnp.clip(rows - start + offset, 0, operand.shape[2] - 1)
                tail = (1,) * (operand.ndim - 3)
                chunk = jnp.take_along_axis(
                    operand[sender], take.reshape(take.shape + tail), axis=1
                )
                mixed = jnp.where(inside.reshape(inside.shape + tail), chunk, output[receiver])
                output = output.at[receiver].set(mixed)
    return output


# --------------------------------------------------------------------------------- plumbing


def _membership(groups: Any, n_devices: int) -> tuple[Any, Any]:
    """Return, by device, the members of its group and its own position among them."""
    members = np.zeros((n_devices, len(groups[0])), int)
    position = np.zeros(n_devices, int)
    for group in groups:
        for place, device in enumerate(group):
            members[device], position[device] = group, place
    return members, position


def _shift(rest: Sequence[Slot], by: int) -> dict[str, int]:
    return {slot: p + by for p, slot in enumerate(rest) if isinstance(slot, str)}


def _sized(axes: Axes, name: str, size: int) -> Axes:
    """Return `axes` with a passing helper axis; its name cannot be a person's."""
    return Axes({**axes.sizes, name: size}, axes.manual)


def _with(axes: Axes, shape: tuple[int, ...]) -> Axes:
    return _sized(_sized(axes, "\0device", shape[0]), "\0member", shape[1])


def _restore(axes: Axes, value: Spread, names: Sequence[str]) -> Spread:
    sized = _sized(axes, "\0device", axes.size(names))
    front, rest = in_front(value, ["\0device"], sized)
    return out_of_front(front, names, rest, axes)


def _reducing(rule: Callable[..., Spread]) -> Callable[..., Spread]:
    """Adapt a reduction to the parameter names of its primitive (`axes`)."""

    def adapted(axes_: Axes, value: Spread, **params: Any) -> Spread:
        return rule(
            axes_,
            value,
            axes_param=params["axes"],
            axis_index_groups=params.get("axis_index_groups"),
        )

    return adapted


COLLECTIVES: dict[str, Callable[..., Spread]] = {
    "psum": _reducing(psum),
    "psum_invariant": _reducing(psum),
    "unreduced_psum": _reducing(psum),
    "pmax": _reducing(pmax),
    "pmin": _reducing(pmin),
    "all_gather": all_gather,
    "all_gather_invariant": all_gather,
    "all_gather_reduced": all_gather,
    "reduce_scatter": psum_scatter,
    "unreduced_reduce_scatter": psum_scatter,
    "all_to_all": all_to_all,
    "ppermute": ppermute,
    "pbroadcast": pbroadcast,
    "ragged_all_to_all": ragged_all_to_all,
}
# Asynchronous pairs: all the work happens at the start, the end hands the value on.
COLLECTIVES |= {f"{name}_start": rule for name, rule in list(COLLECTIVES.items())}

# Sums: a product that feeds one of these can be summed within the contraction.
SUMS = frozenset({"psum", "psum_invariant", "unreduced_psum"})

# Casts between varying-axes types, and placements: the numbers stay as they are.
IDENTITIES = frozenset(
    {
        "pvary",
        "pcast",
        "preduced",
        "vary_unreduced_cast",
        "vary_unreduced_cast_p",
        "reduced_vary_cast",
        "reduced_vary_cast_p",
        "reshard",
        "mesh_cast",
        "layout_constraint",
        "device_put",
        "sharding_constraint",
        *(f"{name.removesuffix('_start')}_done" for name in COLLECTIVES),
    }
)

# Over the axes they communicate on, these leave every device with the same value.
MAKE_EQUAL = frozenset(
    {
        "psum",
        "psum_invariant",
        "unreduced_psum",
        "pmax",
        "pmin",
        "all_gather",
        "all_gather_invariant",
        "all_gather_reduced",
        "pbroadcast",
    }
)
