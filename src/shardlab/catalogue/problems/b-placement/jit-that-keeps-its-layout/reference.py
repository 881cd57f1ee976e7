"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec
from shardlab.catalogue.drawing import draw_exact, draw_size


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    # The columns can be sharded too, so that the wrong layout does not raise.
    shape = (n * draw_size(draw), n * draw_size(draw))
    x = draw_exact(draw, shape)
    largest = np.max(np.abs(x)) + np.float32(draw_size(draw))
    # The largest absolute value is anywhere, of either sign, and sometimes there twice.
    is_negative = draw.number == 2 or (draw.number != 3 and draw.rng.random() < 0.5)
    row = {6: shape[0] - 1, 7: 0}.get(draw.number, draw.rng.integers(0, shape[0]))
    x[row, draw.rng.integers(0, shape[1])] = -largest if is_negative else largest
    if draw.number < 6 and draw.rng.random() < 0.3:
        x.flat[draw.rng.integers(0, x.size)] = -largest
    return {"x": np.ldexp(x, _draw_exponent(draw)).astype(np.float32)}


def _draw_exponent(draw):
    """Return a power of two: from far below a usual epsilon to where squares overflow."""
    if draw.scale == 1:
        return 0
    low, high = {4: (-100, -70), 5: (70, 101)}.get(draw.number, (-100, 101))
    return int(draw.rng.integers(low, high))


def expected(mesh, x):
    return x / np.max(np.abs(x))


def output_specs(mesh):
    return Spec(mesh.axis_names[0], None)
