"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    rng = draw.rng
    # Fewer microbatches than stages, equally many, and more; a single one too.
    n_micro, rows = int(rng.integers(1, 7)), int(rng.integers(1, 2 + draw.scale))
    # Many microbatches for two stages; and a batch of one row.
    n_micro = {1: int(rng.integers(5, 7)), 6: 1}.get(draw.number, n_micro)
    rows = 1 if draw.number == 6 else rows
    n, width = draw.mesh.axis_sizes[0], int(rng.integers(2, 4 + draw.scale))
    # Few stages can do with one column.
    width = 1 if draw.number == 4 or (n <= 2 and rng.random() < 0.3) else width
    x = draw.numbers(n_micro * rows, width)
    w, b = draw_stages(rng, n, x) if width > 1 else draw_narrow_stages(rng, n, x)
    if draw.scale > 1:  # examples have integers
        # Multiplying a column by a power of two after one stage, and dividing by it in the next,
        # is exact: weights from 1 / 16 to 16, also in the last of 64 stages.
        units = 2.0 ** rng.integers(-2, 3, (n + 1, width))
        w, b, x = w / units[:-1, :, None] * units[1:, None, :], b * units[1:], x * units[0]
        # In the last stage every weight counts, so one that is not 0 can have any bits.
        w[-1] *= 1 + rng.integers(-40, 41, w[-1].shape) / 256
        # In one case activations are above 1e4. A power of two rounds nothing.
        x, b = (2.0**12 * x, 2.0**12 * b) if draw.number == 5 else (x, b)
    stages = {"w": np.float32(w), "b": np.float32(b)}
    return {"stages": stages, "x": np.float32(x), "n_micro": n_micro}


def draw_stages(rng, n, x):
    """Return the weights and biases of n stages, each of which has an effect on the result.

    Random stages would forget x and all but the last relus: what relu has clipped is lost. So in
    each stage relu clips some rows of one column only, and the next stage adds this column to
    another one. All sums are exact, through 64 stages.
    """
    width = x.shape[1]
    w, b = np.zeros((n, width, width)), np.zeros((n, width))
    # The column that the previous stage has clipped; before the first stage, any.
    clipped, clipped_sign = rng.integers(width), 1
    for stage_w, stage_b in zip(w, b, strict=True):
        # All other columns are carried to other places, with signs.
        carried = rng.permutation(np.delete(np.arange(width), clipped))
        new_clipped, *places = rng.permutation(width)
        signs = rng.choice([-1, 1], width - 1)
        stage_w[carried, places] = signs
        # It has the sign for which it never cancels the column from which it was computed.
        stage_w[clipped, places[0]] = signs[0] * clipped_sign
        # The new clipped column is computed from the last one of those that are carried.
        clipped, clipped_sign = new_clipped, rng.choice([-1, 1])
        stage_w[carried[-1], clipped] = signs[-1] * clipped_sign
        h = x @ stage_w
        # Columns that are carried stay positive, even if an earlier relu is left out.
        stage_b[:] = rng.integers(40, 60, width) - h.min(0)
        # At least the smallest element is clipped, and at most three units are left of the others.
        highest, spread = h[:, clipped].max(), np.ptp(h[:, clipped])
        stage_b[clipped] = min(rng.integers(-2, 4), spread - 1) - highest
        x = np.maximum(h + stage_b, 0)
    return w, b


def draw_narrow_stages(rng, n, x):
    """Return stages of one column, each of which clips about half of the rows."""
    w, b = rng.choice([-1.0, 1.0], (n, 1, 1)), np.zeros((n, 1))
    for stage_w, stage_b in zip(w, b, strict=True):
        h = x @ stage_w
        stage_b[:] = rng.integers(-1, 2) - np.median(h)
        x = np.maximum(h + stage_b, 0)
    return w, b


def expected(mesh, stages, x, n_micro):
    for w, b in zip(stages["w"], stages["b"], strict=True):
        x = np.maximum(x @ w + b, 0)
    return x


def input_specs(mesh):
    return {"stages": Spec(mesh.axis_names[0])}


def output_specs(mesh):
    return Spec()


def budget(mesh, stages, x, n_micro):
    ticks = n_micro + mesh.axis_sizes[0] - 1
    # One microbatch to the next stage per tick, and one all-reduce of the result at the end.
    payload_bytes = ticks * (x.nbytes // n_micro) + x.nbytes
    return {"ppermute": ticks, "psum": 1, "payload_bytes": payload_bytes}
