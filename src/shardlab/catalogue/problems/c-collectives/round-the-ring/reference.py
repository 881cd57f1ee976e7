"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec

# Forward, backward, longer than the ring; no step is half the ring on every mesh.
_STEPS = (1, 1, -1, 11, 5, 3, 1, 9, -1, 7, -510)


def inputs(draw):
    n = draw.mesh.axis_sizes[0] * (1 + draw.scale)
    x = draw.rng.permutation(np.arange(1, n + 1)).astype(np.float32)
    return {"x": x, "k": _STEPS[draw.number % len(_STEPS)]}


def expected(mesh, x, k):
    return np.roll(x, k * (x.shape[0] // mesh.axis_sizes[0]))


def input_specs(mesh):
    return {"x": Spec(mesh.axis_names[0])}


def output_specs(mesh):
    return Spec(mesh.axis_names[0])
