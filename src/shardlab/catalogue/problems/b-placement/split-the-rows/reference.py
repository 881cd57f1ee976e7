"""Inputs from a seed, and the right answer in plain NumPy."""

import numpy as np
from shardlab.layouts.spec import Spec

_UNEVEN = (5, 6)  # sizes of the mesh axis that the rows do not fit


def inputs(draw):
    n = draw.mesh.n_devices
    # Columns divide too where rows do: a split of the wrong array axis is a layout all the same.
    rows, columns = n * draw.scale, n * (draw.scale + 1)
    if draw.mesh.axis_sizes[0] in _UNEVEN:
        rows, columns = rows + 2, columns + 1
    return {
        "x": draw.rng.permutation(np.arange(rows * columns, dtype=np.float32)).reshape(rows, -1)
    }


def expected(mesh, x):
    n = mesh.axis_sizes[0]
    if len(x) % n:
        raise ValueError(f"{len(x)} rows do not split over {n} devices")
    return x


def output_specs(mesh):
    return Spec(mesh.axis_names[0], None)
