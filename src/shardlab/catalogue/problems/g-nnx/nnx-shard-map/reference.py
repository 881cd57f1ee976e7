"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec
from shardlab.catalogue.threefry import linear_kernel


def inputs(draw):
    # A different number in each of the three cases, 1 among them.
    num_shards = ((2, 3), (4, 5), (1, 6))[draw.number % 3][draw.rng.integers(2)]
    return {**_inputs(draw, num_shards), "num_shards": float(num_shards)}


def accepts(mesh, seed, features, **others):
    return seed >= 0 and features >= 1


accepts_2 = accepts


def expected(mesh, seed, x, num_shards, features):
    return _forward(seed, x, features)


def budget(mesh, x, num_shards, **others):
    # The model is applied to one slice at a time.
    return {"matmul_elements": x.size // int(num_shards)}


def inputs_2(draw):
    return _inputs(draw, draw.mesh.axis_sizes[0])


def expected_2(mesh, seed, x, features):
    return _forward(seed, x, features)


def output_specs_2(mesh):
    return Spec(mesh.axis_names[0])


def _inputs(draw, num_shards):
    rng = draw.rng
    # From 1, which the third case has; in the first two cases not the same number of inputs.
    low, high = {0: (2, 4), 1: (4, 6), 2: (1, 2)}.get(draw.number, (1, 7))
    in_dim = int(rng.integers(low, high))
    # In the first three cases different numbers of outputs too, 1 among them.
    features = int(rng.integers(*{0: (1, 2), 1: (2, 9), 2: (9, 25)}.get(draw.number, (1, 7))))
    rows = int(rng.integers(min(low, 2), 4 if num_shards > 1 else 3))
    x = draw.numbers(num_shards * rows, in_dim)
    # No shard is 0, so that a wrong model on one device is visible.
    x[::rows, 0] += x[::rows, 0] == 0
    return {
        # The page that this problem comes from passes integers as floats. Those of float32 would
        # round most seeds of this size.
        "seed": float(rng.integers(1 << 24, 1 << 31)),
        "x": x,
        "features": float(features),
    }


def _forward(seed, x, features):
    # A new nnx.Linear has a bias of zeros.
    return (x @ linear_kernel(int(seed), x.shape[-1], int(features))).reshape(-1)
