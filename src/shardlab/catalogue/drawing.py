"""Random inputs that several references draw: exact numbers, sizes, mesh shapes, specs.

Everything is drawn freely, so that nothing about the values follows from a shape, a mesh or the
number of the case; and edge values (zeros, negatives, mesh axes of size 1) occur.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardlab.catalogue.reference import Draw
from shardlab.sharding.spec import Spec

FloatArray = npt.NDArray[np.float32]

_LARGE_CASE = 2  # counted from 0; a part without a mesh has three cases
_MAX_HOST_DEVICES = 8  # arrays for larger meshes stay small
_MESH_AXES = ("data", "model", "pod", "stage", "x", "rows")


def draw_exact(
    draw: Draw, shape: int | Sequence[int], *, limit: int = 50, fraction: int = 64
) -> FloatArray:
    """Return numbers between -limit and limit whose sums are exact in any order.

    They are integers at scale 1, to be read, and multiples of 1 / fraction otherwise: a result that
    is rounded to integers or to 16 bits is then wrong. Zero, negative and equal elements occur.
    """
    fraction = 1 if draw.scale == 1 else fraction
    limit = min(limit, 9) if draw.scale == 1 else limit
    values = draw.rng.integers(-limit * fraction, limit * fraction + 1, shape)
    # One element in eight is zero: products, divisions and masks treat it specially.
    values[draw.rng.random(values.shape) < 0.125] = 0
    _set_edge_values(draw, values)
    return (values / fraction).astype(np.float32)


def draw_distinct_shards(draw: Draw, shape: int | Sequence[int]) -> FloatArray:
    """Return exact numbers that differ, so that every wrong position is a wrong value.

    Zero is one of them if there are two or more. Sometimes two neighbors are equal, if they are in
    the same shard of rows: no two shards are alike.
    """
    size = int(np.prod(shape))
    # Of 20 bits: more than a float16 or a bfloat16 has.
    limit, fraction = (size + 9, 1) if draw.scale == 1 else (1 << 20, 1 << 10)
    values = draw.rng.choice(2 * limit + 1, size, replace=False) - limit
    if 0 not in values:
        _set_edge_values(draw, values)
    if size >= 2 * draw.mesh.n_devices and draw.rng.random() < 0.25:
        values[1] = values[0]
    return _scale_some(draw, (values / fraction).reshape(shape).astype(np.float32))


def _set_edge_values(draw: Draw, values: npt.NDArray[Any]) -> None:
    """Make one of two integers zero; of three or more also one positive and one negative."""
    if values.size < 2:
        return
    zero, *others = draw.rng.permutation(values.size)[:3]
    values.flat[zero] = 0
    for sign, place in zip((1, -1), others if len(others) == 2 else (), strict=False):
        values.flat[place] = sign * max(abs(values.flat[place]), 1)


def draw_terms(draw: Draw, shard_size: int) -> FloatArray:
    """Return a vector with `shard_size` exact numbers for each device of the first mesh axis.

    Its sum is not 0 and two shards have different sums, so that n times the sum and the sum of one
    shard are wrong. In one case of each part the first element is not 0.
    """
    n = draw.mesh.axis_sizes[0]
    while True:
        values = draw_exact(draw, (n, shard_size))
        sums = values.sum(axis=1)
        if draw.number == 1 and not values[0, 0]:
            continue
        if sums.sum() and (n == 1 or len(set(sums.tolist())) > 1):
            return _scale_some(draw, values.reshape(-1))


def _scale_some(draw: Draw, values: FloatArray) -> FloatArray:
    """Return values times a power of two in some cases: very large numbers, as exact as before.

    Never in the second case, where small differences count; always in the third, so that no
    judgement accepts a result that is clipped.
    """
    is_scaled = draw.rng.random() < 0.25 or draw.number == 2
    if draw.scale == 1 or draw.number == 1 or not is_scaled:
        return values
    if draw.number == 2:
        return np.ldexp(values, int(draw.rng.integers(30, 61))).astype(np.float32)
    return np.ldexp(values, int(draw.rng.integers(1, 61))).astype(np.float32)


def draw_size(draw: Draw, low: int = 1) -> int:
    """Return the size of one shard along a dimension: `low` or a little more, rarely much more.

    Much more in the third case of every judgement: by chance alone, one judgement in four would
    accept what is wrong for large shards only.
    """
    if draw.scale > 1 and draw.mesh.n_devices <= _MAX_HOST_DEVICES:
        is_large = draw.rng.random() < 0.15
        if is_large or draw.number == _LARGE_CASE:
            return low + int(draw.rng.integers(8, 20))
    if draw.mesh.n_devices == 1 and draw.rng.random() < 0.25:
        return low
    return low + int(draw.rng.integers(0, 1 + 2 * draw.scale))


def draw_mesh_shape(draw: Draw, n_axes: int, max_size: int = 4) -> dict[str, int]:
    """Return a mesh of `n_axes` mesh axes with sizes from 1, in an order of their own."""
    names = draw.rng.choice(_MESH_AXES, n_axes, replace=False).tolist()
    return {name: int(draw.rng.integers(1, max_size + 1)) for name in names}


def draw_spec(draw: Draw, rank: int, mesh_shape: Mapping[str, int]) -> Spec:
    """Return a spec of at most `rank` entries; some mesh axes are not used, some share a dim."""
    entries: list[list[str]] = [[] for _ in range(int(draw.rng.integers(0, rank + 1)))]
    for name in draw.rng.permutation(list(mesh_shape)).tolist():
        # One place more than there are entries: there the mesh axis is not used.
        place = int(draw.rng.integers(0, len(entries) + 1))
        if place < len(entries):
            entries[place].append(name)
    return Spec(*map(tuple, entries))


def shard_counts(spec: Any, rank: int, mesh_shape: Mapping[str, int]) -> list[int]:
    """Return into how many shards a spec divides each dimension."""
    counts = [math.prod(mesh_shape[name] for name in names) for names in spec.axes]
    return counts + [1] * (rank - len(counts))
