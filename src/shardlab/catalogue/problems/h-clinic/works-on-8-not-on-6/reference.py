"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    rng, n = draw.rng, draw.mesh.axis_sizes[0]
    # Divisible by a literal 8 too, so that its use does not raise. On 8 devices, 1 is enough.
    block = 8 * int(rng.integers(1, 2 + draw.scale))
    block = 1 if n == 8 and rng.random() < 0.3 else block
    return {"x": draw.numbers(n * block)}


def input_specs(mesh):
    return {"x": Spec(mesh.axis_names[0])}


def expected(mesh, x):
    blocks = x.reshape(mesh.axis_sizes[0], -1)
    return np.mean(blocks, axis=0, dtype=np.float32)


def output_specs(mesh):
    return Spec()
