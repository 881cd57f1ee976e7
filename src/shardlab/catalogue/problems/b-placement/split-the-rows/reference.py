"""Draw inputs from a seed and compute the expected result in plain NumPy."""

from shardlab import Spec
from shardlab.catalogue.drawing import draw_distinct_shards, draw_size

# Cases whose rows are always divisible, and never; in the others it is drawn.
_DIVISIBLE, _INDIVISIBLE = (0, 2, 3, 4, 5, 7, 11, 12, 13), (9, 10)


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    rows = n * draw_size(draw)
    if draw.number == 4:  # data=2,model=4: the rows could be sharded over all devices
        rows = draw.mesh.n_devices * draw_size(draw)
    if draw.number in (5, 12):  # divisible by the first mesh axis, and not by all 8 devices
        rows = n * (2 * draw_size(draw) - 1)
    if draw.number == 11:  # divisible by 5, and by no other size of a mesh axis
        rows = n * int(draw.rng.choice([1, 5, 7, 11]))
    if draw.number == 0:  # one device
        rows = 1
    is_indivisible = draw.number not in _DIVISIBLE and draw.rng.random() < 0.3
    if n > 1 and (is_indivisible or draw.number in _INDIVISIBLE):
        # Also less than one row for each device; always on 4 devices, never on 6.
        low, high = {9: (0, 1), 10: (1, 3)}.get(draw.number, (0, 3))
        rows = n * int(draw.rng.integers(low, high)) + int(draw.rng.integers(1, n))
    # With n columns the number of elements is divisible even if the number of rows is not.
    columns = n if draw.number == 9 or draw.rng.random() < 0.5 else draw_size(draw)
    if draw.number in (2, 3):  # one column, and as many columns as rows
        columns = 1 if draw.number == 2 else rows
    return {"x": draw_distinct_shards(draw, (rows, columns))}


def expected(mesh, x):
    n = mesh.axis_sizes[0]
    if len(x) % n:
        raise ValueError(f"{len(x)} rows are not divisible by {n} devices")
    return x


def output_specs(mesh):
    return Spec(mesh.axis_names[0], None)
