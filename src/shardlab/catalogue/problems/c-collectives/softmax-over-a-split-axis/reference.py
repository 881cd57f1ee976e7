"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec
from shardlab.catalogue.drawing import draw_size

_LARGEST = 10_000  # absolute value that the statement allows


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    # On four devices a shard has many columns.
    low = 24 if draw.scale > 1 and draw.number == 2 else 2 if n == 1 else 1
    cols = n * draw_size(draw, low=low)
    kinds = [_far_apart, _negative, _close_together, _around_zero]
    # In one case there are more than 16 rows.
    n_more = 16 if draw.scale > 1 and draw.number == 6 else draw.rng.integers(0, 2 * draw.scale)
    kinds += [(*kinds, _equal)[kind] for kind in draw.rng.integers(0, 5, n_more)]
    if draw.scale > 1:
        kinds += [_near_largest, _near_smallest, _both_ends, _last_of_a_shard]
    kinds = draw.rng.permutation(kinds)[: 1 if draw.number == 7 else None]
    x = np.stack([kind(draw, cols) for kind in kinds])
    # Half of the rows get fractions: multiples of 1/8, which a float32 represents exactly.
    has_fractions = (draw.scale > 1) * (draw.rng.random((len(x), 1)) < 0.5)
    return {"x": (x + has_fractions * draw.rng.integers(0, 8, x.shape) / 8).astype(np.float32)}


def _far_apart(draw, cols):
    """Return a row whose maximum is more than 88 above the first element and the mean."""
    row = draw.rng.integers(-400, -199, cols)
    peaks = draw.rng.choice(np.arange(1, cols), min(2, cols - 1), replace=False)
    row[peaks] = draw.rng.integers(100, 200) + draw.rng.integers(0, 3, len(peaks))
    return row


def _last_of_a_shard(draw, cols):
    """Return a row whose maximum is far above all others, and the last column of its shard."""
    row = draw.rng.integers(-400, -199, cols)
    n = draw.mesh.axis_sizes[0]
    row[(int(draw.rng.integers(0, n)) + 1) * (cols // n) - 1] = draw.rng.integers(100, 200)
    return row


def _negative(draw, cols):
    """Return a row far below zero: exp of every element is 0, unless the maximum is subtracted."""
    return draw.rng.integers(-3, 4, cols) - draw.rng.integers(120, 1000)


def _close_together(draw, cols):
    """Return a row in which every element counts, and exp of which overflows."""
    return draw.rng.integers(-6, 7, cols) + draw.rng.integers(200, 1000)


def _near_largest(draw, cols):
    """Return a row at the upper end of what the statement allows, in which every element counts."""
    return _LARGEST - 1 - draw.rng.integers(0, 7, cols)


def _near_smallest(draw, cols):
    return draw.rng.integers(0, 7, cols) - _LARGEST


def _both_ends(draw, cols):
    """Return a row from one end to the other, whose largest elements are a few apart."""
    row = draw.rng.integers(-_LARGEST, _LARGEST // 2, cols)
    peaks = draw.rng.choice(cols, min(2, cols), replace=False)
    row[peaks] = _LARGEST - 1 - np.arange(len(peaks))
    return row


def _around_zero(draw, cols):
    row = draw.rng.integers(-2, 3, cols)
    row[draw.rng.integers(0, cols)] = 0
    return row


def _equal(draw, cols):
    return np.full(cols, draw.rng.integers(-5, 6))


def expected(mesh, x):
    exps = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    return (exps / exps.sum(axis=1, keepdims=True)).astype(np.float32)


def accepts(mesh, x):
    return np.max(np.abs(x)) <= _LARGEST


def input_specs(mesh):
    return {"x": Spec(None, mesh.axis_names[0])}


def output_specs(mesh):
    return Spec(None, mesh.axis_names[0])


def budget(mesh, x):
    # One float32 per row, twice: the maximum and the sum.
    return {"payload_bytes": 2 * 4 * x.shape[0]}
