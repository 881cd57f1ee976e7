"""Draw inputs from a seed and compute the expected result in plain NumPy."""

from shardlab import Spec
from shardlab.catalogue.drawing import draw_distinct_shards, draw_size


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    # The rows of a shard are not divisible by n: they cannot be what is split.
    # One row for each device on 8, and many on 4.
    shard_rows = 1 if draw.number == 3 else draw_size(draw, low=80 if draw.number == 5 else 1)
    shard_rows += int(n > 1 and shard_rows % n == 0)
    shape = (n * shard_rows, n * draw_size(draw, low=2))
    if n == 1 and draw.rng.random() < 0.25:
        shape = (1, 1)
    return {"x": draw_distinct_shards(draw, shape)}


def expected(mesh, x):
    return x


def input_specs(mesh):
    return {"x": Spec(mesh.axis_names[0])}


def output_specs(mesh):
    return Spec(None, mesh.axis_names[0])
