"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    batch, d_in = 3 + draw.scale, 2 + draw.scale
    # At least two columns per device, so that the order within a shard matters too.
    d_out = n * (1 + draw.scale)

    def random_integers(*shape):
        return draw.rng.integers(-4, 5, shape).astype(np.float32)

    # No bias is 0, so that a missing or misplaced bias changes the result.
    b = draw.rng.permutation(np.arange(1, d_out + 1)).astype(np.float32)
    return {"x": random_integers(batch, d_in), "w": random_integers(d_in, d_out), "b": b}


def expected(mesh, x, w, b):
    return x @ w + b


def input_specs(mesh):
    axis = mesh.axis_names[0]
    return {"w": Spec(None, axis), "b": Spec(axis)}


def output_specs(mesh):
    return Spec(None, mesh.axis_names[0])
