"""Collectives that move slices between devices: a device axis and a local axis change places.

Throughout, a mesh axis with one device has no device axis, so that nothing is there to move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from shardlab.simulator.interpreter.rules.reductions import Groups, names_in, psum, within_groups
from shardlab.simulator.interpreter.stacked_array import (
    MeshAxes,
    Slot,
    StackedArray,
    bring_before,
    broadcast_over,
    from_slots,
    in_front,
    out_of_front,
)

Rule = Callable[[MeshAxes, StackedArray, Sequence[str]], StackedArray]


def _over(
    axes: MeshAxes, value: StackedArray, axis_name: Any, groups: Groups | None, rule: Rule
) -> StackedArray:
    """Apply `rule` over the mesh axes that have more than one device, in groups if there are."""
    names = axes.drop_size_one(names_in(axis_name))
    if groups is None:
        return rule(axes, value, names)
    return within_groups(axes, value, names, groups, rule)


def all_gather(
    axes: MeshAxes,
    value: StackedArray,
    *,
    all_gather_dimension: int,
    axis_name: Any,
    axis_index_groups: Groups | None = None,
    tiled: bool,
    **_: Any,
) -> StackedArray:
    def rule(axes: MeshAxes, value: StackedArray, names: Sequence[str]) -> StackedArray:
        return _absorb(axes, value, names, all_gather_dimension, tiled=tiled)

    return _over(axes, value, axis_name, axis_index_groups, rule)


def _absorb(
    axes: MeshAxes, value: StackedArray, names: Sequence[str], local_axis: int, *, tiled: bool
) -> StackedArray:
    """Turn device axes into one new local axis before `local_axis`, merged with it if `tiled`."""
    value = bring_before(value, names, local_axis, axes)
    slots: list[Slot] = list(value.slots)
    shape = list(value.array.shape)
    end = slots.index(local_axis) if local_axis in slots else len(slots)
    start = end - len(names)
    if tiled:
        shape[start : end + 1] = [axes.size(names) * shape[end]]
        slots[start : end + 1] = [local_axis]
    else:
        shape[start:end] = [axes.size(names)]
        slots[start:end] = [local_axis]
    return from_slots(lax.reshape(value.array, tuple(shape)), slots)


def psum_scatter(
    axes: MeshAxes,
    value: StackedArray,
    *,
    scatter_dimension: int,
    axis_name: Any,
    axis_index_groups: Groups | None = None,
    tiled: bool,
    **_: Any,
) -> StackedArray:
    def rule(axes: MeshAxes, value: StackedArray, names: Sequence[str]) -> StackedArray:
        total = psum(axes, value, names)
        return _scatter(axes, total, names, scatter_dimension, tiled=tiled)

    return _over(axes, value, axis_name, axis_index_groups, rule)


def _scatter(
    axes: MeshAxes, value: StackedArray, names: Sequence[str], local_axis: int, *, tiled: bool
) -> StackedArray:
    """Split a local axis into device axes; untiled, nothing of it stays behind."""
    position = value.position_of_local(local_axis)
    shape, slots = list(value.array.shape), list(value.slots)
    tail = [shape[position] // axes.size(names)] if tiled else []
    shape[position : position + 1] = [*(axes.sizes[name] for name in names), *tail]
    slots[position : position + 1] = [*names, *([local_axis] if tiled else [])]
    return from_slots(lax.reshape(value.array, tuple(shape)), slots)


# Where slices go while the device axis they come from is still there.
_TO = "\0to"


def all_to_all(
    axes: MeshAxes,
    value: StackedArray,
    *,
    axis_name: Any,
    split_axis: int,
    concat_axis: int,
    axis_index_groups: Groups | None = None,
    **_: Any,
) -> StackedArray:
    """Each device cuts `split_axis` in n pieces, sends piece i to device i, and joins what comes.

    A new device axis is cut from `split_axis`, and the one that was is merged into `concat_axis`.
    """

    def rule(axes: MeshAxes, value: StackedArray, names: Sequence[str]) -> StackedArray:
        if not names:
            return value
        inner = axes.with_axis(_TO, axes.size(names))
        value = _scatter(inner, broadcast_over(value, names, axes), [_TO], split_axis, tiled=True)
        value = _absorb(inner, value, names, concat_axis, tiled=True)
        return _split_device_axis(axes, value, _TO, names)

    return _over(axes, value, axis_name, axis_index_groups, rule)


def _split_device_axis(
    axes: MeshAxes, value: StackedArray, name: str, names: Sequence[str]
) -> StackedArray:
    """Split the device axis `name` into `names`, where it stands."""
    position = value.device_axes[name]
    shape, slots = list(value.array.shape), list(value.slots)
    shape[position : position + 1] = [axes.sizes[n] for n in names]
    slots[position : position + 1] = names
    return from_slots(lax.reshape(value.array, tuple(shape)), slots)


def ragged_all_to_all(
    axes: MeshAxes,
    *values: StackedArray,
    axis_name: Any,
    axis_index_groups: Groups | None = None,
    **_: Any,
) -> StackedArray:
    """Each device sends a chunk of rows, of any size, to each other one."""
    names = axes.drop_size_one(names_in(axis_name))
    others = axes.in_mesh_order(n for v in values for n in v.device_axes if n not in names)
    order = (*names, *others)
    arrays = []
    for value in values:
        array, _rest = in_front(broadcast_over(value, order, axes), order, axes)
        arrays.append(array.reshape((axes.size(names), axes.size(others), *array.shape[1:])))
    groups = axis_index_groups or [list(range(axes.size(names)))]
    out = _ragged(arrays, groups)
    out = out.reshape((-1, *out.shape[2:]))
    return out_of_front(out, order, tuple(range(out.ndim - 1)), axes)


def _ragged(arrays: Sequence[Any], groups: Groups) -> Any:
    """Row `i` of a device's output comes from whichever chunk it lies in, or stays as it was."""
    operand, output, input_offsets, send_sizes, output_offsets, _ = arrays
    rows = jnp.arange(output.shape[2])
    tail = (1,) * (operand.ndim - 3)
    for group in groups:
        for slot, receiver in enumerate(group):
            for sender in group:
                start = output_offsets[sender, :, slot][:, None]
                size = send_sizes[sender, :, slot][:, None]
                offset = input_offsets[sender, :, slot][:, None]
                inside = (rows >= start) & (rows < start + size)
                take = jnp.clip(rows - start + offset, 0, operand.shape[2] - 1)
                chunk = jnp.take_along_axis(
                    operand[sender], take.reshape(take.shape + tail), axis=1
                )
                mixed = jnp.where(inside.reshape(inside.shape + tail), chunk, output[receiver])
                output = output.at[receiver].set(mixed)
    return output


EXCHANGES: dict[str, Callable[..., StackedArray]] = {
    "all_gather": all_gather,
    "all_gather_invariant": all_gather,
    "all_gather_reduced": all_gather,
    "reduce_scatter": psum_scatter,
    "unreduced_reduce_scatter": psum_scatter,
    "all_to_all": all_to_all,
    "ragged_all_to_all": ragged_all_to_all,
}
