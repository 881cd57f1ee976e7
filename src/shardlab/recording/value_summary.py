"""A stacked array -> groups of devices with equal copies, each summarised.

Copies are equal if they are equal bit for bit. Large values become block means on a grid; of many
groups only some are listed, with one mean per device for all of them.
"""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from shardlab import _jax
from shardlab.recording.device_sets import device_set
from shardlab.recording.step_records import Cells, Number, ValueGroup
from shardlab.sharding.mesh import MeshSizes
from shardlab.simulator.interpreter.replica_recorder import plain_array
from shardlab.simulator.interpreter.stacked_array import Dim, StackedArray, arrange_dims

Array = np.ndarray[Any, Any]
Slices = Mapping[int, tuple[tuple[int, int], ...]]  # by device


@dataclasses.dataclass(frozen=True)
class SummaryLimits:
    """How much of a value is recorded: the side of the grid of cells, and the number of groups."""

    side: int = 32
    groups: int = 512

    @classmethod
    def for_groups(cls, n_groups: int) -> SummaryLimits:
        """Return finer limits for few groups than for many."""
        if n_groups <= 8:
            return cls(side=32, groups=8)
        return cls(side=16, groups=16) if n_groups <= 16 else cls(side=8, groups=64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValueSummary:
    """The groups of a value, and the mesh axes over which its copies really differ."""

    groups: tuple[ValueGroup, ...]
    n_groups: int
    varies_over: tuple[str, ...]
    device_means: Cells | None


def summarize_value(
    value: StackedArray,
    mesh: MeshSizes,
    active: StackedArray | None = None,
    slices: Slices | None = None,
) -> ValueSummary:
    """Return the summary of a value on a mesh; of the devices in `active` if there is a mask."""
    names = [name for name, _ in mesh if name in value.device_axes]
    copies = device_copies(value, names)
    labels, firsts = _group_copies(copies, len(names))
    device_labels = _spread_over_mesh(labels, names, mesh)
    if active is not None:
        device_labels = np.where(spread_mask(active, mesh), device_labels, -1)
    members = {
        label: np.flatnonzero(device_labels == label)
        for label in np.unique(device_labels)
        if label >= 0
    }
    # In the order of the first device of each group.
    ordered = sorted(members, key=lambda label: members[label][0])
    limits = SummaryLimits.for_groups(len(ordered))
    flat = copies.reshape(-1, *copies.shape[len(names) :])
    groups = tuple(
        _summarize_group(flat[firsts[label]], members[label], limits.side, slices)
        for label in ordered[: limits.groups]
    )
    means = None
    if len(groups) < len(ordered):
        means = _device_means(flat, firsts, device_labels)
    return ValueSummary(
        groups=groups,
        n_groups=len(ordered),
        varies_over=tuple(n for i, n in enumerate(names) if (np.diff(labels, axis=i) != 0).any()),
        device_means=means,
    )


def device_copies(value: StackedArray, names: Sequence[str]) -> Array:
    """Return the copies of the devices as a NumPy array, device axes first, in this order."""
    dims: tuple[Dim, ...] = (*names, *value.local_dims)
    array = arrange_dims(value, dims, value.array.shape)
    if hasattr(array, "dtype") and _jax.is_extended(array.dtype):
        array = jax.random.key_data(array)  # NumPy has no dtype for random keys
    copies: Array = plain_array(np.asarray(array))
    return copies


def _group_copies(copies: Array, n_axes: int) -> tuple[Array, list[int]]:
    """Return the label of each copy, and the position of the first copy of each label."""
    grid = copies.shape[:n_axes]
    n_copies = math.prod(grid)
    flat = np.ascontiguousarray(copies).reshape(n_copies, -1)
    labels = np.zeros(n_copies, int)
    label_of: dict[bytes, int] = {}
    firsts: list[int] = []
    for position in range(n_copies):
        key = flat[position].tobytes()
        if key not in label_of:
            label_of[key] = len(firsts)
            firsts.append(position)
        labels[position] = label_of[key]
    return labels.reshape(grid), firsts


def _spread_over_mesh(grid: Array, names: Sequence[str], mesh: MeshSizes) -> Array:
    """Return one entry per device, from a grid over some of the mesh axes."""
    shape = [size if name in names else 1 for name, size in mesh]
    full = np.broadcast_to(grid.reshape(shape), [size for _, size in mesh])
    return full.reshape(-1)


def spread_mask(mask: StackedArray, mesh: MeshSizes) -> Array:
    """Return the entry of each device in a mask over some of the mesh axes."""
    names = [name for name, _ in mesh if name in mask.device_axes]
    return _spread_over_mesh(device_copies(mask, names), names, mesh)


def _summarize_group(copy: Array, devices: Array, side: int, slices: Slices | None) -> ValueGroup:
    finite = copy[np.isfinite(copy)] if copy.dtype.kind in "fc" else copy
    n_nan = int(np.isnan(copy).sum()) if copy.dtype.kind in "fc" else 0
    ranges = {slices.get(int(device)) for device in devices} if slices else {None}
    return ValueGroup(
        devices=device_set(devices),
        n=len(devices),
        min=_reduce(np.min, copy),
        max=_reduce(np.max, copy),
        mean=_short_float(float(np.mean(_real(finite), dtype=np.float64))) if finite.size else None,
        n_nan=n_nan,
        cells=make_cells(copy, side),
        # Devices with equal values may hold different parts of the array.
        slice=ranges.pop() if len(ranges) == 1 else None,
    )


def _real(array: Array) -> Array:
    return np.abs(array) if array.dtype.kind == "c" else array


def _reduce(reduce: Any, array: Array) -> Number | None:
    array = _real(array)
    if array.dtype.kind == "f":
        array = array[~np.isnan(array)]
    if not array.size:
        return None
    result = reduce(array)
    return _short_float(float(result)) if array.dtype.kind == "f" else int(result)


def _short_float(number: float) -> float:
    """Return a float with as many digits as a float32 has: longer ones only take space."""
    return float(f"{number:.7g}")


def _device_means(flat: Array, firsts: Sequence[int], labels: Array) -> Cells:
    with np.errstate(invalid="ignore", over="ignore"):
        means = [
            float(np.mean(_real(flat[i]), dtype=np.float64)) if flat[i].size else 0.0
            for i in firsts
        ]
        per_device = np.array([means[label] if label >= 0 else np.nan for label in labels], "<f4")
    return _encode(per_device, "all")


# ----------------------------------------------------------------------------------------- cells


def make_cells(copy: Array, side: int) -> Cells:
    """Return the elements of a copy if they fit in the grid, else means of blocks."""
    rows = _as_rows(_real(copy))
    if _fits_grid(rows.shape, side):
        return _encode(_plain_number(rows), "all")
    with np.errstate(invalid="ignore", over="ignore"):
        blocks = rows.astype(np.float64)
        for axis, size in enumerate(rows.shape):
            limit = side**2 if rows.ndim == 1 else side
            if size > limit:
                blocks = _mean_of_blocks(blocks, axis, limit)
        return _encode(blocks.astype("<f4"), "block mean")


def coarsen_cells(cells: Cells, side: int) -> Cells:
    """Return cells on a grid of at most `side` rows and columns."""
    if _fits_grid(cells.shape, side):
        return cells
    array = np.frombuffer(base64.b64decode(cells.data), f"<{cells.dtype}").reshape(cells.shape)
    return dataclasses.replace(make_cells(array, side), of="block mean")


def _fits_grid(shape: Sequence[int], side: int) -> bool:
    return all(size <= side for size in shape) or (len(shape) == 1 and shape[0] <= side**2)


def _as_rows(copy: Array) -> Array:
    """Return an array of rank 0, 1 or 2: leading dimensions are merged into the rows."""
    return copy if copy.ndim <= 2 else copy.reshape(-1, copy.shape[-1])


def _mean_of_blocks(array: Array, axis: int, n_blocks: int) -> Array:
    # Blocks differ by at most one element if the size is not divisible.
    edges = np.linspace(0, array.shape[axis], n_blocks + 1).astype(int)
    sums = np.add.reduceat(array, edges[:-1], axis=axis)
    counts = np.diff(edges).reshape([-1 if i == axis else 1 for i in range(array.ndim)])
    result: Array = sums / counts
    return result


def _plain_number(array: Array) -> Array:
    """Return an array of a dtype that the page reads: f4, f8, i4, u4 or u1."""
    kind, itemsize = array.dtype.kind, array.dtype.itemsize
    if kind == "b":
        return array.astype("u1")
    if kind in "iu":
        if itemsize <= 4:
            return array.astype("<u4" if array.dtype == np.uint32 else "<i4")
        return array.astype("<f8")  # JavaScript reads 64-bit integers as floats anyway
    return array.astype("<f8" if itemsize == 8 else "<f4")


def _encode(array: Array, of: Literal["all", "block mean"]) -> Cells:
    array = np.ascontiguousarray(array)
    return Cells(
        shape=tuple(int(size) for size in array.shape),
        of=of,
        data=base64.b64encode(array.tobytes()).decode(),
        dtype=f"{array.dtype.kind}{array.dtype.itemsize}",
    )
