"""Inputs from a seed, and the right answer in plain NumPy."""

import numpy as np
from shardlab.layouts.spec import Spec


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    batch, d_out = 3 + draw.scale, 2 + draw.scale
    # n divides d_in too, so that cutting the wrong way gives numbers and not a refusal.
    d_in, hidden = n * draw.scale, n * (1 + draw.scale)

    def whole(*shape):
        return draw.rng.integers(-3, 4, shape).astype(np.float32)

    return {
        "x": whole(batch, d_in),
        "w1": whole(d_in, hidden),
        "b1": draw.rng.permutation(np.arange(1, hidden + 1)).astype(np.float32) % 5,
        "w2": whole(hidden, d_out),
        # No bias is 0, and no two are alike: one that is added n times shows, and where.
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
    # The result itself, once.
    return {"payload_bytes": 4 * x.shape[0] * w2.shape[1]}
