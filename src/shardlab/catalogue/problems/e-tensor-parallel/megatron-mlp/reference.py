"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    batch, d_out = 3 + draw.scale, 2 + draw.scale
    # d_in is divisible by n too, so that sharding the wrong dimension does not raise.
    d_in, hidden = n * draw.scale, n * (1 + draw.scale)

    def random_integers(*shape):
        return draw.rng.integers(-3, 4, shape).astype(np.float32)

    return {
        "x": random_integers(batch, d_in),
        "w1": random_integers(d_in, hidden),
        "b1": draw.rng.permutation(np.arange(1, hidden + 1)).astype(np.float32) % 5,
        "w2": random_integers(hidden, d_out),
        # The biases are nonzero and all different, so that a bias added n times is detected.
        "b2": draw.rng.permutation(np.arange(1, d_out + 1)).astype(np.float32),
    }


def expected(mesh, x, w1, b1, w2, b2):
    return np.maximum(x @ w1 + b1, 0) @ w2 + b2


def input_specs(mesh):
    axis = mesh.axis_names[0]
    return {"w1": Spec(None, axis), "b1": Spec(axis), "w2": Spec(axis, None)}


def output_specs(mesh):
    return Spec()


def budget(mesh, x, w1, b1, w2, b2):
    # One all-reduce of the result.
    return {"payload_bytes": 4 * x.shape[0] * w2.shape[1]}
