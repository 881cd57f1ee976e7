"""all_gather, psum_scatter and all_to_all: a device axis becomes local, or a local dim is sharded.

On stacked arrays these collectives are reshapes, with a transpose if the device axis stands
elsewhere. A mesh axis of size 1 has no device axis, so there is nothing to move along it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from shardlab.simulator.interpreter.rules.reductions import (
    Groups,
    Rule,
    apply_within_groups,
    mesh_axis_names,
    psum,
)
from shardlab.simulator.interpreter.stacked_array import (
    Dim,
    MeshAxes,
    StackedArray,
    broadcast_over,
    merge_to_front,
    move_before_dim,
    split_from_front,
)


def _apply_rule(
    axes: MeshAxes, value: StackedArray, axis_name: Any, groups: Groups | None, rule: Rule
) -> StackedArray:
    """Apply `rule` over the mesh axes with more than one device, within groups if there are any."""
    names = axes.drop_size_one(mesh_axis_names(axis_name))
    if groups is None:
        return rule(axes, value, names)
    return apply_within_groups(axes, value, names, groups, rule)


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
    def gather_axes(axes: MeshAxes, value: StackedArray, names: Sequence[str]) -> StackedArray:
        return _gather_dim(axes, value, names, all_gather_dimension, tiled=tiled)

    return _apply_rule(axes, value, axis_name, axis_index_groups, gather_axes)


def _gather_dim(
    axes: MeshAxes, value: StackedArray, names: Sequence[str], local_dim: int, *, tiled: bool
) -> StackedArray:
    """Turn device axes into one new local dim before `local_dim`, merged with it if `tiled`."""
    value = move_before_dim(value, names, local_dim, axes)
    dims: list[Dim] = list(value.dims)
    shape = list(value.array.shape)
    end = dims.index(local_dim) if local_dim in dims else len(dims)
    start = end - len(names)
    if tiled:
        shape[start : end + 1] = [axes.size(names) * shape[end]]
        dims[start : end + 1] = [local_dim]
    else:
        shape[start:end] = [axes.size(names)]
        dims[start:end] = [local_dim]
    return StackedArray.from_dims(lax.reshape(value.array, tuple(shape)), dims)


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
    def sum_and_scatter(axes: MeshAxes, value: StackedArray, names: Sequence[str]) -> StackedArray:
        total = psum(axes, value, names)
        return _scatter_dim(axes, total, names, scatter_dimension, tiled=tiled)

    return _apply_rule(axes, value, axis_name, axis_index_groups, sum_and_scatter)


def _scatter_dim(
    axes: MeshAxes, value: StackedArray, names: Sequence[str], local_dim: int, *, tiled: bool
) -> StackedArray:
    """Split a local dim into device axes; untiled, the device axes replace it entirely."""
    position = value.position_of_local(local_dim)
    shape, dims = list(value.array.shape), list(value.dims)
    tail = [shape[position] // axes.size(names)] if tiled else []
    shape[position : position + 1] = [*(axes.sizes[name] for name in names), *tail]
    dims[position : position + 1] = [*names, *([local_dim] if tiled else [])]
    return StackedArray.from_dims(lax.reshape(value.array, tuple(shape)), dims)


# The destination devices of an all_to_all, while the device axis of the senders still exists: a
# stacked array can have only one device axis per mesh axis.
_DESTINATION = "\0destination"


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
    """Each device splits `split_axis` into n chunks, sends chunk i to device i, and concatenates.

    A new device axis is split off `split_axis`; the old one is merged into `concat_axis`.
    """

    def swap_axes(axes: MeshAxes, value: StackedArray, names: Sequence[str]) -> StackedArray:
        if not names:
            return value
        inner = axes.with_axis(_DESTINATION, axes.size(names))
        stacked = broadcast_over(value, names, axes)
        split = _scatter_dim(inner, stacked, [_DESTINATION], split_axis, tiled=True)
        merged = _gather_dim(inner, split, names, concat_axis, tiled=True)
        return _split_device_axis(axes, merged, _DESTINATION, names)

    return _apply_rule(axes, value, axis_name, axis_index_groups, swap_axes)


def _split_device_axis(
    axes: MeshAxes, value: StackedArray, name: str, names: Sequence[str]
) -> StackedArray:
    """Split the device axis `name` into `names`, in place."""
    position = value.device_axes[name]
    shape, dims = list(value.array.shape), list(value.dims)
    shape[position : position + 1] = [axes.sizes[n] for n in names]
    dims[position : position + 1] = names
    return StackedArray.from_dims(lax.reshape(value.array, tuple(shape)), dims)


def ragged_all_to_all(
    axes: MeshAxes,
    *values: StackedArray,
    axis_name: Any,
    axis_index_groups: Groups | None = None,
    **_: Any,
) -> StackedArray:
    """Each device sends a chunk of rows, of any size, to each device of its group."""
    names = axes.drop_size_one(mesh_axis_names(axis_name))
    other_axes = axes.in_mesh_order(n for v in values for n in v.device_axes if n not in names)
    order = (*names, *other_axes)
    arrays = []
    for value in values:
        array, _rest = merge_to_front(broadcast_over(value, order, axes), order, axes)
        arrays.append(array.reshape((axes.size(names), axes.size(other_axes), *array.shape[1:])))
    groups = axis_index_groups or [list(range(axes.size(names)))]
    out = _exchange_ragged_rows(arrays, groups)
    out = out.reshape((-1, *out.shape[2:]))
    return split_from_front(out, order, tuple(range(out.ndim - 1)), axes)


def _exchange_ragged_rows(arrays: Sequence[Any], groups: Groups) -> Any:
    """Return each device's output: row i comes from the chunk it falls in, or stays unchanged."""
    operand, output, input_offsets, send_sizes, output_offsets, _ = arrays
    rows = jnp.arange(output.shape[2])
    tail = (1,) * (operand.ndim - 3)
    # Offsets are values, so chunk sizes are unknown when tracing: mask rows instead of slicing.
    for group in groups:
        for member, receiver in enumerate(group):
            for sender in group:
                start = output_offsets[sender, :, member][:, None]
                size = send_sizes[sender, :, member][:, None]
                offset = input_offsets[sender, :, member][:, None]
                inside = (rows >= start) & (rows < start + size)
                source_rows = jnp.clip(rows - start + offset, 0, operand.shape[2] - 1)
                chunk = jnp.take_along_axis(
                    operand[sender], source_rows.reshape(source_rows.shape + tail), axis=1
                )
                mixed = jnp.where(inside.reshape(inside.shape + tail), chunk, output[receiver])
                output = output.at[receiver].set(mixed)
    return output


GATHER_SCATTERS: dict[str, Callable[..., StackedArray]] = {
    "all_gather": all_gather,
    "all_gather_invariant": all_gather,
    "all_gather_reduced": all_gather,
    "reduce_scatter": psum_scatter,
    "unreduced_reduce_scatter": psum_scatter,
    "all_to_all": all_to_all,
    "ragged_all_to_all": ragged_all_to_all,
}
