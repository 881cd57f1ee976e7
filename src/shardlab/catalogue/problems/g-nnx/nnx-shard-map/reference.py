"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec
from shardlab.catalogue.threefry import linear_kernel


def inputs(draw):
    num_shards = int(draw.rng.integers(2, 7))
    return {**_inputs(draw, num_shards), "num_shards": float(num_shards)}


def accepts(mesh, seed, features, **others):
    return seed >= 0 and features >= 1


accepts_2 = accepts


def expected(mesh, seed, x, num_shards, features):
    return _forward(seed, x, features)


def inputs_2(draw):
    return _inputs(draw, draw.mesh.axis_sizes[0])


def expected_2(mesh, seed, x, features):
    return _forward(seed, x, features)


def output_specs_2(mesh):
    return Spec(mesh.axis_names[0])


def _inputs(draw, num_shards):
    rng = draw.rng
    rows, features = map(int, rng.integers([2, 1], [4 + draw.scale, 7]))
    # At least two, and not the same number in all cases of the first part.
    in_dim = 2 + 2 * (draw.number % 3) + int(rng.integers(2))
    x = draw.numbers(num_shards * rows, in_dim)
    # No shard is 0, so that a wrong model on one device is visible.
    x[::rows, 0] += x[::rows, 0] == 0
    return {
        # The page that this problem comes from passes integers as floats.
        "seed": float(rng.integers(0, 100_000)),
        "x": x,
        "features": float(features),
    }


def _forward(seed, x, features):
    # A new nnx.Linear has a bias of zeros.
    return (x @ linear_kernel(int(seed), x.shape[-1], int(features))).reshape(-1)
