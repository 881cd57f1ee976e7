"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    k = 1 + draw.scale
    x = draw.rng.permutation(np.arange(1, n * k + 1)).astype(np.float32)
    active = draw.rng.permutation(
        np.arange(n) % 3 != 1
    )  # on two or more devices: some, but not all
    return {"x": x, "active": active}


def input_specs(mesh):
    axis = mesh.axis_names[0]
    return {"x": Spec(axis), "active": Spec(axis)}


def expected(mesh, x, active):
    shards = x.reshape(len(active), -1)
    return np.sum(shards[active], dtype=np.float32)


def output_specs(mesh):
    return Spec()
