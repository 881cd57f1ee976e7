"""weighted(x, w, mesh): the mean of x weighted by w."""

import numpy as np


def inputs(draw):
    n = draw.mesh.axis_sizes[0] * (1 + draw.scale)
    return {
        "x": draw.rng.uniform(0, 9, n).astype(np.float32),
        "w": draw.rng.uniform(1, 9, n).astype(np.float32),
    }


def expected(mesh, x, w):
    return (np.sum(x * w) / np.sum(w)).astype(np.float32)
