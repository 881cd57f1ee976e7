"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec
from shardlab.catalogue.drawing import draw_exact, draw_size


def inputs(draw):
    # In the case with the largest weights their sum is much larger than each of them.
    n, shard_size = draw.mesh.axis_sizes[0], draw_size(draw, low=20 if draw.number == 3 else 1)
    x, w = draw_exact(draw, (n, shard_size)), np.abs(draw_exact(draw, (n, shard_size), limit=4))
    # One shard has much more weight than the others, and is not their mean.
    heavy, light = draw.rng.choice(n, 2, replace=False) if n > 1 else (0, 0)
    w[heavy] = 16 + w[heavy]
    x[heavy] += 50 if draw.scale > 1 else 5
    w[light] = np.maximum(w[light], 1)
    if n > 2:  # and some shard has no weight at all
        w[draw.rng.choice([shard for shard in range(n) if shard not in (heavy, light)])] = 0
    if draw.scale > 1 and draw.number == 7:  # only two weights, both of the smallest
        is_weight = np.zeros(w.shape, bool)
        is_weight[[heavy, light], draw.rng.integers(0, shard_size)] = True
        w = np.where(is_weight, 1 + draw.rng.integers(0, 8, w.shape) / 8, 0).astype(np.float32)
    if draw.scale > 1 and draw.number in (3, 4, 5):  # large elements, and small ones
        x = np.ldexp(x, (10, 20, -10)[draw.number - 3])
    return {"x": x.reshape(-1), "w": np.ldexp(w, _draw_exponent(draw)).reshape(-1)}


def _draw_exponent(draw):
    """Return a power of two for the weights, whose sum is far below 1 or far above."""
    if draw.scale == 1:
        return 0
    # Far below 1; then weights of up to 1e30 and of 1e-33, the ends of what the statement allows.
    if draw.number in (2, 3, 7):
        return {2: -100, 3: 95, 7: -109}[draw.number]
    return int(draw.rng.integers(-60, 61))


def accepts(mesh, x, w):
    weights = w[w != 0]
    if not weights.size or weights.min() < 1e-33 or weights.max() > 1e30:
        return False
    return np.sum(np.abs(x.astype(np.float64) * w)) <= 1e37


def expected(mesh, x, w):
    with np.errstate(invalid="ignore"):  # a shard without weight has no mean
        return np.float32(np.sum(x * w, dtype=np.float64) / np.sum(w, dtype=np.float64))


def input_specs(mesh):
    return {"x": Spec(mesh.axis_names[0]), "w": Spec(mesh.axis_names[0])}


def output_specs(mesh):
    return Spec()
