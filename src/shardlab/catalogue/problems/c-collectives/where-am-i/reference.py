"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    return {"n": draw.mesh.axis_sizes[0] * (2 + draw.scale)}


def expected(mesh, n):
    return np.arange(n, dtype=np.int32)


def output_specs(mesh):
    return Spec(mesh.axis_names[0])


def budget(mesh, n):
    # Creating all ids first and sharding them afterwards stores all of them on one device.
    return {"eager_bytes": 4 * n // mesh.axis_sizes[0]}
