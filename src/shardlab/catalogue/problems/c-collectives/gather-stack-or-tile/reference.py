"""Draw inputs from a seed and compute the expected result in plain NumPy."""

from shardlab import Spec
from shardlab.catalogue.drawing import draw_distinct_shards, draw_size


def inputs(draw):
    # On four devices a shard has several rows, so that mixed rows are detected.
    shard_rows = draw_size(draw, low=2 if draw.number == 2 else 1)
    return {
        "x": draw_distinct_shards(draw, (draw.mesh.axis_sizes[0] * shard_rows, draw_size(draw)))
    }


def expected(mesh, x):
    return x


def input_specs(mesh):
    return {"x": Spec(mesh.axis_names[0])}


def output_specs(mesh):
    return Spec()
