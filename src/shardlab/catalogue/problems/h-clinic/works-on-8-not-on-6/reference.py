"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    k = 8 * (1 + draw.scale)  # divisible by a literal 8 too, so that its use does not raise
    return {"x": draw.rng.permutation(np.arange(1, n * k + 1)).astype(np.float32)}


def input_specs(mesh):
    return {"x": Spec(mesh.axis_names[0])}


def expected(mesh, x):
    blocks = x.reshape(mesh.axis_sizes[0], -1)
    return np.mean(blocks, axis=0, dtype=np.float32)


def output_specs(mesh):
    return Spec()
