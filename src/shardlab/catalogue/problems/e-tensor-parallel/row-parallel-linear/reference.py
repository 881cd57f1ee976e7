"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    batch, d_out = 2 + draw.scale, 3 + draw.scale
    # At least two features per device, so that the order within a shard matters too.
    d_in = n * (1 + draw.scale)

    def random_integers(*shape):
        return draw.rng.integers(-4, 5, shape).astype(np.float32)

    # The biases are nonzero and all different, so that a bias added n times is detected.
    b = draw.rng.permutation(np.arange(1, d_out + 1)).astype(np.float32)
    return {"x": random_integers(batch, d_in), "w": random_integers(d_in, d_out), "b": b}


def expected(mesh, x, w, b):
    return x @ w + b


def input_specs(mesh):
    axis = mesh.axis_names[0]
    return {"x": Spec(None, axis), "w": Spec(axis, None)}


def output_specs(mesh):
    return Spec()


def budget(mesh, x, w, b):
    # One all-reduce of the result.
    return {"payload_bytes": 4 * x.shape[0] * w.shape[1]}
