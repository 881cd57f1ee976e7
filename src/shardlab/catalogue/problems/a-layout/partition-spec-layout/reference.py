"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import math

import numpy as np

from shardlab import Spec


def inputs(draw):
    n = (4, 1, 2, 3, 8)[draw.number % 5]
    # Odd, so that dividing the wrong dimension always leaves a remainder.
    kernel_in = int(draw.rng.integers(2, 10 * draw.scale)) * 2 + 1
    return {
        "num_devices": n,
        "kernel_in": kernel_in,
        "kernel_out": n * int(draw.rng.integers(2, 10 * draw.scale)),
    }


def expected(mesh, num_devices, kernel_in, kernel_out):
    return np.array([kernel_in, kernel_out // num_devices], np.float32)


_SPECS = (
    Spec(None, "model"),
    Spec("data", "model"),
    Spec(("data", "model"), None),
    Spec("data"),  # shorter than the shape: the other dimensions are not sharded
    Spec(),
    Spec(None, None, ("model", "data")),
    Spec("model", None),  # must raise
    Spec(None, ("data", "model")),  # must raise, although each of the two sizes divides alone
    Spec("data", None, "pod"),
    Spec(("pod", "data"), "model"),
)


def inputs_2(draw):
    number = draw.number % len(_SPECS)
    spec = _SPECS[number]
    mesh_shape = {"pod": 3, "data": 2, "model": 5 if number % 4 == 1 else 4}
    counts = _shard_counts(spec, 3, mesh_shape)
    shard_sizes = draw.rng.permutation([2, 3, 5]) + draw.scale
    shape = [int(count * size) for count, size in zip(counts, shard_sizes, strict=True)]
    if number == 6:
        shape[0] += 1
    if number == 7:  # 2 divides it and 4 divides it, and 2 * 4 does not
        shape[1] = 4 * (2 * int(shard_sizes[1]) + 1)
    return {"shape": tuple(shape), "spec": spec, "mesh_shape": mesh_shape}


def expected_2(mesh, shape, spec, mesh_shape):
    counts = _shard_counts(spec, len(shape), mesh_shape)
    for dim, (size, count) in enumerate(zip(shape, counts, strict=True)):
        if size % count:
            raise ValueError(f"dimension {dim} of size {size} is not divisible by {count}")
    return tuple(size // count for size, count in zip(shape, counts, strict=True))


def _shard_counts(spec, rank, mesh_shape):
    counts = [math.prod(mesh_shape[name] for name in names) for names in spec.axes]
    return counts + [1] * (rank - len(counts))
