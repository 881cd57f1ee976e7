"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    rows, inner, cols = n * draw.scale, n * (1 + draw.scale), n * (2 + draw.scale)
    # Small integers: sums are exact in any order.
    return {
        "a": draw.rng.integers(-3, 4, (rows, inner)).astype(np.float32),
        "b": draw.rng.integers(-3, 4, (inner, cols)).astype(np.float32),
    }


def expected(mesh, a, b):
    return a @ b


def input_specs(mesh):
    axis = mesh.axis_names[0]
    return {"a": Spec(None, axis), "b": Spec(axis)}


def output_specs(mesh):
    return Spec(mesh.axis_names[0])
