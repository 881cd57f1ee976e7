"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    # Integers sum exactly in any order; the sum is not 0, so n times the sum is different.
    n = draw.mesh.axis_sizes[0] * (1 + draw.scale)
    return {"x": draw.rng.permutation(np.arange(2, n + 2)).astype(np.float32)}


def expected(mesh, x):
    return np.sum(x, dtype=np.float32)


inputs_2, expected_2 = inputs, expected


def output_specs_2(mesh):
    return Spec()


def inputs_3(draw):
    # Values that any rounding would change: copies must be equal bit for bit.
    n = draw.mesh.axis_sizes[0] * (1 + draw.scale)
    return {"x": draw.rng.standard_normal(n).astype(np.float32)}


def input_specs_3(mesh):
    return {"x": Spec(mesh.axis_names[0])}


def expected_3(mesh, x):
    return x


def output_specs_3(mesh):
    return Spec()
