"""Inputs from a seed, and the right answer in plain NumPy."""

import numpy as np
from shardlab.layouts.spec import Spec

from shardlab.catalogue.threefry import linear_kernel


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    return {
        "seed": int(draw.rng.integers(1, 1000)),
        # Both can be split over any mesh of the ladder, so that the wrong one is not refused.
        "din": 24 * (1 + draw.scale),
        "dout": 6 * n,
    }


def expected(mesh, seed, din, dout):
    return {"kernel": linear_kernel(seed, din, dout), "bias": np.zeros(dout, np.float32)}


def output_specs(mesh):
    axis = mesh.axis_names[0]
    return {"kernel": Spec(None, axis), "bias": Spec(axis)}


def budget(mesh, seed, din, dout):
    n = mesh.axis_sizes[0]
    part = 4 * dout * (din + 1) // n
    # The random bits and what is made of them lie beside the result for a moment. One device
    # makes everything, and is allowed to.
    return {"peak_bytes": 6 * part + 1024, "eager_bytes": part if n > 1 else 6 * part}
