"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    rng, n = draw.rng, draw.mesh.axis_sizes[0]
    batch, d_out, features = map(int, rng.integers(1, 4 + draw.scale, 3))
    # One case has large numbers. A power of two rounds nothing.
    factor = 2**12 if draw.number == 5 and draw.scale > 1 else 1
    return {
        "x": factor * draw.numbers(batch, n * features),
        "w": draw.numbers(n * features, d_out),
        "b": factor * draw.numbers(d_out),
    }


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
