"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    n = draw.mesh.axis_sizes[0] * (1 + draw.scale)
    # Unsorted integers whose shards have different means.
    x = draw.rng.permutation(np.arange(1, n + 1)) ** 2
    return {"x": x.astype(np.float32)}


def input_specs(mesh):
    return {"x": Spec(mesh.axis_names[0])}


def expected(mesh, x):
    return {"sorted": np.sort(x), "mean": np.mean(x, dtype=np.float32)}


def output_specs(mesh):
    return Spec()
