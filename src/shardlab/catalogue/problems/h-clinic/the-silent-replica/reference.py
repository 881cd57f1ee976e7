"""Inputs from a seed, and the right answer in plain NumPy."""

import numpy as np
from shardlab.layouts.spec import Spec


def inputs(draw):
    n = draw.mesh.axis_sizes[0] * (1 + draw.scale)
    # Whole numbers whose order is none, and whose pieces have different means.
    x = draw.rng.permutation(np.arange(1, n + 1)) ** 2
    return {"x": x.astype(np.float32)}


def input_specs(mesh):
    return {"x": Spec(mesh.axis_names[0])}


def expected(mesh, x):
    return {"sorted": np.sort(x), "mean": np.mean(x, dtype=np.float32)}


def output_specs(mesh):
    return Spec()
