"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    # A shard is divisible by n along both dimensions, so that swapped arguments do not raise.
    rows, cols = n * n * draw.scale, n * (1 + draw.scale)
    x = draw.rng.permutation(np.arange(rows * cols)).reshape(rows, cols)
    return {"x": x.astype(np.float32)}


def expected(mesh, x):
    return x


def input_specs(mesh):
    return {"x": Spec(mesh.axis_names[0])}


def output_specs(mesh):
    return Spec(None, mesh.axis_names[0])
