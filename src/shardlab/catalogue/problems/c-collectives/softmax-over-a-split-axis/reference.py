"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    rows, cols = 2 + draw.scale, draw.mesh.axis_sizes[0] * (1 + draw.scale)
    x = draw.rng.integers(-3, 4, (rows, cols)).astype(np.float32)
    # exp(100) overflows float32; the offset differs from row to row.
    return {"x": x + 100 * np.arange(1, rows + 1, dtype=np.float32)[:, None]}


def expected(mesh, x):
    exps = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    return (exps / exps.sum(axis=1, keepdims=True)).astype(np.float32)


def input_specs(mesh):
    return {"x": Spec(None, mesh.axis_names[0])}


def output_specs(mesh):
    return Spec(None, mesh.axis_names[0])


def budget(mesh, x):
    # One float32 per row, twice: the maximum and the sum.
    return {"payload_bytes": 2 * 4 * x.shape[0]}
