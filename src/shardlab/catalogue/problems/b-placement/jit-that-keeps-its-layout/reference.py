"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import math

import numpy as np

from shardlab import Spec
from shardlab.catalogue.drawing import draw_exact, draw_size

_SMALLEST_MAXIMUM, _LARGEST_MAXIMUM = 1e-31, 1e33  # absolute values that the statement allows


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    # The columns can be sharded too, so that the wrong layout does not raise.
    shape = (n * draw_size(draw), n * draw_size(draw))
    x = draw_exact(draw, shape)
    largest = np.max(np.abs(x)) + np.float32(draw_size(draw))
    # The largest absolute value is anywhere, of either sign, and sometimes there twice.
    is_negative = draw.number == 2 or (draw.number != 3 and draw.rng.random() < 0.5)
    row, column = draw.rng.integers(0, shape[0]), draw.rng.integers(0, shape[1])
    row, column = {6: (-1, -1), 7: (0, 0)}.get(draw.number, (row, column))
    x[row, column] = -largest if is_negative else largest
    if draw.number < 6 and draw.rng.random() < 0.3:
        x.flat[draw.rng.integers(0, x.size)] = -largest
    return {"x": np.ldexp(x, _draw_exponent(draw, float(largest))).astype(np.float32)}


def _draw_exponent(draw, largest):
    """Return a power of two: from far below a usual epsilon to where squares overflow."""
    if draw.scale == 1:
        return 0
    # In two cases the largest absolute value is within a factor of two of what is allowed.
    if draw.number == 4:
        return math.ceil(math.log2(_SMALLEST_MAXIMUM / largest))
    if draw.number == 5:
        return math.floor(math.log2(_LARGEST_MAXIMUM / largest))
    return int(draw.rng.integers(-100, 101))


def accepts(mesh, x):
    return _SMALLEST_MAXIMUM <= np.max(np.abs(x)) <= _LARGEST_MAXIMUM


def expected(mesh, x):
    return x / np.max(np.abs(x))


def output_specs(mesh):
    return Spec(mesh.axis_names[0], None)
