"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec
from shardlab.catalogue.drawing import draw_distinct_shards, draw_size

_MAX_STEP = 10**6  # that the statement allows


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    shard_size = 1 if draw.number == 5 else draw_size(draw)
    return {"x": draw_distinct_shards(draw, n * shard_size), "k": _draw_step(draw, n)}


def _draw_step(draw, n):
    """Return a step of any sign, also several times around the ring, and 0."""
    turns = n * int(draw.rng.integers(-2, 3))
    if draw.number == 2:  # one device backward or forward, as a negative number
        return -abs(turns) - int(draw.rng.choice([1, n - 1]))
    if draw.number == 3:  # several devices at once
        return abs(turns) + int(draw.rng.choice([2, 3, 5, 6]))
    if draw.number in (4, 5):  # two mesh axes: the ring is the first of them
        return turns + int(draw.rng.choice([1, n - 1]))
    if draw.number == 1:  # around the ring and back to the same place
        return n * int(draw.rng.choice([-2, -1, 1, 2]))
    if draw.number == 8:  # nowhere
        return 0
    if draw.scale > 1 and draw.number in (6, 7):  # very often around the ring, in both directions
        turns = int(draw.rng.integers(_MAX_STEP // 2, _MAX_STEP - n)) // n
        return (turns * n + int(draw.rng.integers(1, n))) * (-1 if draw.number == 6 else 1)
    limit = 3 * n if draw.rng.random() < 0.8 else _MAX_STEP
    return int(draw.rng.integers(-limit, limit + 1))


def accepts(mesh, x, k):
    return x.shape[0] % mesh.axis_sizes[0] == 0 and abs(k) <= _MAX_STEP


def expected(mesh, x, k):
    return np.roll(x, k * (x.shape[0] // mesh.axis_sizes[0]))


def input_specs(mesh):
    return {"x": Spec(mesh.axis_names[0])}


def output_specs(mesh):
    return Spec(mesh.axis_names[0])
