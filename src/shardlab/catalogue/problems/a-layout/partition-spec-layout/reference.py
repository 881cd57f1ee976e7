"""Inputs from a seed, and the right answer in plain NumPy."""

import math

import numpy as np
from shardlab.layouts.spec import Spec


def inputs(draw):
    n = (4, 1, 2, 3, 8)[draw.number % 5]
    # Odd, so that a division of the wrong array axis never comes out even.
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
    Spec("data"),  # shorter than the shape: the other array axes stay whole
    Spec(),
    Spec(None, None, ("model", "data")),
    Spec("model", None),  # must be refused
    Spec(None, ("data", "model")),  # must be refused, though each of the two divides alone
    Spec("data", None, "pod"),
    Spec(("pod", "data"), "model"),
)


def inputs_2(draw):
    number = draw.number % len(_SPECS)
    spec = _SPECS[number]
    mesh_shape = {"pod": 3, "data": 2, "model": 5 if number % 4 == 1 else 4}
    cuts = _cuts(spec, 3, mesh_shape)
    k = draw.rng.permutation([2, 3, 5]) + draw.scale
    shape = [int(c * n) for c, n in zip(cuts, k, strict=True)]
    if number == 6:
        shape[0] += 1
    if number == 7:  # 2 divides it and 4 divides it, and 2 * 4 does not
        shape[1] = 4 * (2 * int(k[1]) + 1)
    return {"shape": tuple(shape), "spec": spec, "mesh_shape": mesh_shape}


def expected_2(mesh, shape, spec, mesh_shape):
    cuts = _cuts(spec, len(shape), mesh_shape)
    for axis, (size, cut) in enumerate(zip(shape, cuts, strict=True)):
        if size % cut:
            raise ValueError(f"array axis {axis} of size {size} does not split in {cut}")
    return tuple(size // cut for size, cut in zip(shape, cuts, strict=True))


def _cuts(spec, rank, mesh_shape):
    cuts = [math.prod(mesh_shape[name] for name in names) for names in spec.axes]
    return cuts + [1] * (rank - len(cuts))
