"""linear(x, w, b, mesh): x @ w + b, with the inner array axis split."""

import numpy as np


def inputs(draw):
    inner = draw.mesh.axis_sizes[0] * (1 + draw.scale)
    whole = draw.rng.integers
    return {
        "x": whole(1, 5, (2, inner)).astype(np.float32),
        "w": whole(1, 5, (inner, 3)).astype(np.float32),
        "b": whole(10, 20, 3).astype(np.float32),
    }


def expected(mesh, x, w, b):
    return x @ w + b
