"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec
from shardlab.catalogue.drawing import draw_distinct_shards, draw_size


def inputs(draw):
    # All values differ, so that swapped shards are detected.
    shard_size = draw_size(draw, low=6 if draw.number == 1 else 1)
    return {"x": draw_distinct_shards(draw, draw.mesh.axis_sizes[0] * shard_size)}


def expected(mesh, x):
    return x * np.float32(2)


inputs_2, expected_2 = inputs, expected


def output_specs_2(mesh):
    return Spec(mesh.axis_names[0])
