"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec
from shardlab.catalogue.drawing import draw_exact, draw_size


def inputs(draw):
    n, shard_size = draw.mesh.axis_sizes[0], draw_size(draw)
    x, w = draw_exact(draw, (n, shard_size)), np.abs(draw_exact(draw, (n, shard_size), limit=4))
    # One shard has much more weight than the others, and is not their mean.
    heavy, light = draw.rng.choice(n, 2, replace=False) if n > 1 else (0, 0)
    w[heavy] = 16 + w[heavy]
    x[heavy] += 50 if draw.scale > 1 else 5
    w[light] = np.maximum(w[light], 1)
    if n > 2:  # and some shard has no weight at all
        w[draw.rng.choice([shard for shard in range(n) if shard not in (heavy, light)])] = 0
    if draw.scale > 1 and draw.number in (4, 5):  # large elements, and small ones
        x = np.ldexp(x, (20, -10)[draw.number - 4])
    return {"x": x.reshape(-1), "w": np.ldexp(w, _draw_exponent(draw)).reshape(-1)}


def _draw_exponent(draw):
    """Return a power of two for the weights, whose sum is far below 1 or far above."""
    if draw.scale == 1:
        return 0
    if draw.number in (2, 3):  # both ends of what the statement allows
        return (-100, 90)[draw.number - 2]
    return int(draw.rng.integers(-60, 61))


def accepts(mesh, x, w):
    weights = w[w != 0]
    return weights.size > 0 and weights.min() >= 1e-33 and weights.max() <= 1e30


def expected(mesh, x, w):
    with np.errstate(invalid="ignore"):  # a shard without weight has no mean
        return np.float32(np.sum(x * w, dtype=np.float64) / np.sum(w, dtype=np.float64))


def input_specs(mesh):
    return {"x": Spec(mesh.axis_names[0]), "w": Spec(mesh.axis_names[0])}


def output_specs(mesh):
    return Spec()
