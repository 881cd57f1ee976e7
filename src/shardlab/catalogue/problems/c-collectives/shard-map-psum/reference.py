"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    # Small integers: sums are exact in any order, and easy to check by hand.
    n = draw.mesh.axis_sizes[0] * (1 + draw.scale)
    return {"x": draw.rng.permutation(np.arange(4, n + 4)).astype(np.float32)}


def expected(mesh, x):
    return np.sum(x, dtype=np.float32)


inputs_2, expected_2 = inputs, expected


def output_specs_2(mesh):
    return Spec()
