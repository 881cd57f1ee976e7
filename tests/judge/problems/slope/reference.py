"""slope(w, x, mesh): the mean of (w * x) ** 2 and its gradient by w."""

import numpy as np


def inputs(draw):
    n = draw.mesh.axis_sizes[0] * (1 + draw.scale)
    return {"w": np.float32(2), "x": draw.rng.integers(1, 6, n).astype(np.float32)}


def expected(mesh, w, x):
    return np.mean((w * x) ** 2, dtype=np.float32), np.mean(2 * w * x**2, dtype=np.float32)
