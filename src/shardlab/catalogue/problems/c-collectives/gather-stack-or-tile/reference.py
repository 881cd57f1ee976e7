"""Draw inputs from a seed and compute the expected result in plain NumPy."""

from shardlab import Spec
from shardlab.catalogue.drawing import draw_distinct_shards, draw_size


def inputs(draw):
    # On two and four devices a shard has several rows, so that mixed rows are detected.
    rows = draw.mesh.axis_sizes[0] * draw_size(draw, low=2 if draw.number in (1, 2) else 1)
    columns = rows if draw.number == 1 else draw_size(draw)
    return {"x": draw_distinct_shards(draw, (rows, columns))}


def expected(mesh, x):
    return x


def input_specs(mesh):
    return {"x": Spec(mesh.axis_names[0])}


def output_specs(mesh):
    return Spec()
