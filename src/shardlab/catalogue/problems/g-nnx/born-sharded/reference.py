"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec
from shardlab.catalogue.threefry import linear_kernel


def inputs(draw):
    rng, n = draw.rng, draw.mesh.axis_sizes[0]
    # Both are divisible on every test mesh, so that sharding the wrong one does not raise.
    din, dout = 24 * int(rng.integers(1, 4) + draw.scale), n * int(rng.integers(4, 9))
    # A square kernel, and one output per device.
    dout = {1: din, 2: n}.get(draw.number, dout)
    return {"seed": int(rng.integers(0, 1 << 31)), "din": din, "dout": dout}


def expected(mesh, seed, din, dout):
    return {"kernel": linear_kernel(seed, din, dout), "bias": np.zeros(dout, np.float32)}


def output_specs(mesh):
    axis = mesh.axis_names[0]
    return {"kernel": Spec(None, axis), "bias": Spec(axis)}


def budget(mesh, seed, din, dout):
    n = mesh.axis_sizes[0]
    shard_bytes = 4 * dout * (din + 1) // n
    # Random bits and intermediate values are in memory along with the result. On a mesh of one
    # device, creating the full layer is allowed.
    return {
        "peak_bytes": 6 * shard_bytes + 1024,
        "eager_bytes": shard_bytes if n > 1 else 6 * shard_bytes,
    }
