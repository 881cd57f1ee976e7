"""linear(x, w, b, mesh): x @ w + b, with the inner dimension sharded."""

import numpy as np


def inputs(draw):
    inner = draw.mesh.axis_sizes[0] * (1 + draw.scale)
    integers = draw.rng.integers
    return {
        "x": integers(1, 5, (2, inner)).astype(np.float32),
        "w": integers(1, 5, (inner, 3)).astype(np.float32),
        "b": integers(10, 20, 3).astype(np.float32),
    }


def expected(mesh, x, w, b):
    return x @ w + b
