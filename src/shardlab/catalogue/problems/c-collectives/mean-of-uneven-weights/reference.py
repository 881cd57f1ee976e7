"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    size = 1 + draw.scale
    x = draw.rng.permutation(np.arange(1, n * size + 1)).astype(np.float32)
    w = draw.rng.integers(1, 4, (n, size)).astype(np.float32)
    # The last shard has much more weight than the others, and one shard has none.
    w[-1] *= 8
    if n > 2:
        w[1] = 0
    return {"x": x, "w": w.reshape(-1)}


def expected(mesh, x, w):
    with np.errstate(invalid="ignore"):  # a shard without weight has no mean
        return np.float32(np.sum(x * w, dtype=np.float64) / np.sum(w, dtype=np.float64))


def input_specs(mesh):
    return {"x": Spec(mesh.axis_names[0]), "w": Spec(mesh.axis_names[0])}


def output_specs(mesh):
    return Spec()
