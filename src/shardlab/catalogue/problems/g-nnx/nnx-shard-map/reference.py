"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec
from shardlab.catalogue.threefry import linear_kernel


def inputs(draw):
    num_shards = (2, 3, 4)[draw.number % 3]
    return {**_inputs(draw, num_shards), "num_shards": float(num_shards)}


def expected(mesh, seed, x, num_shards, features):
    return _forward(seed, x, features)


def inputs_2(draw):
    return _inputs(draw, draw.mesh.axis_sizes[0])


def expected_2(mesh, seed, x, features):
    return _forward(seed, x, features)


def output_specs_2(mesh):
    return Spec(mesh.axis_names[0])


def _inputs(draw, num_shards):
    shape = (num_shards * (1 + draw.scale), 2 + draw.scale)
    return {
        # The page that this problem comes from passes integers as floats.
        "seed": float(draw.rng.integers(1, 1000)),
        "x": draw.rng.integers(-4, 5, shape).astype(np.float32),
        "features": float(3 + draw.scale),
    }


def _forward(seed, x, features):
    # A new nnx.Linear has a bias of zeros.
    return (x @ linear_kernel(int(seed), x.shape[-1], int(features))).reshape(-1)
