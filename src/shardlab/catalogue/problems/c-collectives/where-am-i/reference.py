"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec
from shardlab.catalogue.drawing import draw_size

_MAX_IDS = 1 << 17  # that the statement allows


def inputs(draw):
    n_devices = draw.mesh.axis_sizes[0]
    if draw.scale > 1 and draw.number == 3:  # more ids than 16 bits count
        n = int(draw.rng.integers(_MAX_IDS // 2 + n_devices, _MAX_IDS + 1))
        return {"n": n // n_devices * n_devices}
    # On four devices a shard has several ids, so that other orders are detected.
    return {"n": n_devices * draw_size(draw, low=2 if draw.number == 2 else 1)}


def accepts(mesh, n):
    return 1 <= n <= _MAX_IDS and n % mesh.axis_sizes[0] == 0


def expected(mesh, n):
    return np.arange(n, dtype=np.int32)


def output_specs(mesh):
    return Spec(mesh.axis_names[0])


def budget(mesh, n):
    n_shards = mesh.axis_sizes[0]
    size = n // n_shards
    return {
        # Creating all ids first and sharding them afterwards stores all of them on one device.
        "eager_bytes": 4 * size,
        # Creating all ids on every device does, too. A table with one entry per device is right.
        "body_elements": max(size, n_shards),
    }
