"""Inputs from a seed, and the right answer in plain NumPy."""

import numpy as np
from shardlab.layouts.spec import Spec


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    # A piece of rows can be cut n times along either array axis, so that a swap is not refused.
    rows, cols = n * n * draw.scale, n * (1 + draw.scale)
    x = draw.rng.permutation(np.arange(rows * cols)).reshape(rows, cols)
    return {"x": x.astype(np.float32)}


def expected(mesh, x):
    return x


def input_specs(mesh):
    return {"x": Spec(mesh.axis_names[0])}


def output_specs(mesh):
    return Spec(None, mesh.axis_names[0])
