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

_FRACTION = 8  # multiples of 1/8: a float32 represents their sums and small products exactly
_MESH_AXES = ("data", "model", "pod", "stage", "x", "rows")


def draw_exact(draw: Draw, shape: int | Sequence[int], limit: int = 50) -> FloatArray:
    """Return numbers between -limit and limit whose sums are exact in any order.

    They are integers at scale 1, to be read, and multiples of 1/8 otherwise: a result that is
    rounded to integers is then wrong. Zero, negative and equal elements occur.
    """
    fraction = 1 if draw.scale == 1 else _FRACTION
    limit = min(limit, 9) if draw.scale == 1 else limit
    values = draw.rng.integers(-limit * fraction, limit * fraction + 1, shape)
    # One element in eight is zero: products, divisions and masks treat it specially.
    values[draw.rng.random(values.shape) < 0.125] = 0
    if values.size > 1:
        values.flat[draw.rng.integers(0, values.size)] = 0
    return (values / fraction).astype(np.float32)


def draw_distinct_shards(draw: Draw, shape: int | Sequence[int]) -> FloatArray:
    """Return exact numbers that differ, so that every wrong position is a wrong value.

    Zero is one of them if there are two or more. Sometimes two neighbors are equal, if they are in
    the same shard of rows: no two shards are alike.
    """
    fraction = 1 if draw.scale == 1 else _FRACTION
    size = int(np.prod(shape))
    limit = size + (9 if draw.scale == 1 else 40 * fraction)
    values = draw.rng.choice(2 * limit + 1, size, replace=False) - limit
    if size > 1 and 0 not in values:
        values[draw.rng.integers(0, size)] = 0
    if size >= 2 * draw.mesh.n_devices and draw.rng.random() < 0.25:
        values[1] = values[0]
    return (values / fraction).reshape(shape).astype(np.float32)


def draw_terms(draw: Draw, shard_size: int) -> FloatArray:
    """Return a vector with `shard_size` exact numbers for each device of the first mesh axis.

    Its sum is not 0 and two shards have different sums, so that n times the sum and the sum of one
    shard are wrong.
    """
    n = draw.mesh.axis_sizes[0]
    while True:
        values = draw_exact(draw, (n, shard_size))
        sums = values.sum(axis=1)
        if sums.sum() and (n == 1 or len(set(sums.tolist())) > 1):
            return values.reshape(-1)


def draw_size(draw: Draw, low: int = 1) -> int:
    """Return the size of one shard along a dimension: `low` or a little more."""
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
