"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec

_UNEVEN = (5, 6)  # mesh axis sizes that do not divide the number of rows


def inputs(draw):
    n = draw.mesh.n_devices
    # Columns are divisible whenever rows are, so sharding the wrong dimension is a valid layout.
    rows, columns = n * draw.scale, n * (draw.scale + 1)
    if draw.mesh.axis_sizes[0] in _UNEVEN:
        rows, columns = rows + 2, columns + 1
    return {
        "x": draw.rng.permutation(np.arange(rows * columns, dtype=np.float32)).reshape(rows, -1)
    }


def expected(mesh, x):
    n = mesh.axis_sizes[0]
    if len(x) % n:
        raise ValueError(f"{len(x)} rows are not divisible by {n} devices")
    return x


def output_specs(mesh):
    return Spec(mesh.axis_names[0], None)
