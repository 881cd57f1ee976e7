"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec
from shardlab.catalogue.drawing import draw_size, draw_terms


def inputs(draw):
    # Sums are exact in any order, and never 0: n times the sum is then a different number.
    return {"x": draw_terms(draw, draw_size(draw, low=6 if draw.number == 1 else 1))}


def expected(mesh, x):
    return np.float32(np.sum(x, dtype=np.float64))


inputs_2, expected_2 = inputs, expected


def output_specs_2(mesh):
    return Spec()


def inputs_3(draw):
    # Values that any rounding would change: copies must be equal bit for bit.
    x = 10 * draw.rng.standard_normal(draw.mesh.axis_sizes[0] * draw_size(draw))
    if x.size > 1:
        x[draw.rng.integers(0, x.size, 2)] = 0
    return {"x": x.astype(np.float32)}


def input_specs_3(mesh):
    return {"x": Spec(mesh.axis_names[0])}


def expected_3(mesh, x):
    return x


def output_specs_3(mesh):
    return Spec()
