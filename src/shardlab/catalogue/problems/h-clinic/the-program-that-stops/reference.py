"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    rng, n = draw.rng, draw.mesh.axis_sizes[0]
    # One case has long shards.
    low, high = (20, 30) if draw.number == 2 and draw.scale > 1 else (1, 3 + draw.scale)
    x = draw.numbers(n, int(rng.integers(low, high)))
    # No shard adds up to 0, so that one too many or too few is visible.
    x[:, 0] += x.sum(1) == 0
    # Any number of devices, from none to all; some but not all if there are enough.
    n_active = int(rng.integers(0, n + 1))
    if draw.number in (1, 2, 3):
        n_active = int(rng.integers(1, max(2, n)))
    active = rng.permutation(np.arange(n) < n_active)
    if draw.number == 3 and draw.scale > 1:
        x *= 2**17  # no number but 0 is below 1000
    return {"x": x.reshape(-1), "active": active}


def input_specs(mesh):
    axis = mesh.axis_names[0]
    return {"x": Spec(axis), "active": Spec(axis)}


def expected(mesh, x, active):
    shards = x.reshape(len(active), -1)
    return np.sum(shards[active], dtype=np.float32)


def output_specs(mesh):
    return Spec()
