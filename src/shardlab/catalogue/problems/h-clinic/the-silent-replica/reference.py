"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    rng, n = draw.rng, draw.mesh.axis_sizes[0]
    # Unsorted numbers with ties, of both signs, whose mean is different in every case.
    shards = draw.numbers(n, int(rng.integers(1, 4 + draw.scale))) + rng.integers(-10, 11)
    shards[rng.random(shards.shape) < 0.1] = 0
    # Shards have different means, so that the mean of one is wrong; and n times 0 would be right.
    while not shards.sum() or (n > 1 and not np.ptp(shards.sum(1))):
        shards[0, 0] += 1
    if draw.number == 2 and draw.scale > 1:
        shards *= 2.0**-6  # between multiples of 1 / 1024
    elif draw.number in (3, 4) or rng.random() < 0.2:
        # Up to a million, all of one sign: with both, the rounding of large terms could be larger
        # than the tolerance of a small mean.
        sign = {3: 1, 4: -1}.get(draw.number, rng.choice([-1, 1]))
        shards = sign * (abs(shards) + 1)
        shards *= rng.integers(990_000, 1_000_000) / abs(shards).max()
    return {"x": shards.reshape(-1).astype(np.float32)}


def input_specs(mesh):
    return {"x": Spec(mesh.axis_names[0])}


def expected(mesh, x):
    return {"sorted": np.sort(x), "mean": np.mean(x, dtype=np.float32)}


def output_specs(mesh):
    return Spec()
