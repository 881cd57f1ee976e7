"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    rng, n = draw.rng, draw.mesh.axis_sizes[0]
    # Divisible by a literal 8 too, so that its use does not raise. On 8 devices, 1 is enough.
    block = 8 * int(rng.integers(1, 2 + draw.scale))
    block = 1 if n == 8 and draw.scale > 1 else block
    # Where 'data' is the second axis, x is too short to be sharded over it.
    block = 1 if "data" in draw.mesh.axis_names[1:] else block
    x = draw.numbers(n * block)
    return {"x": np.float32(x * 2**20) if draw.number == 1 and draw.scale > 1 else x}


def input_specs(mesh):
    return {"x": Spec(mesh.axis_names[0])}


def expected(mesh, x):
    blocks = x.reshape(mesh.axis_sizes[0], -1)
    return np.mean(blocks, axis=0, dtype=np.float32)


def output_specs(mesh):
    return Spec()
