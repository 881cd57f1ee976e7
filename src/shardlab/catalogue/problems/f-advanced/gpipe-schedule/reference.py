"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    width = 2 + draw.scale
    # Fewer microbatches than stages, equally many, and more.
    n_micro = (3, 2, 4, 5)[draw.number % 4]
    # One entry of 1 or 0.5 per row keeps values small through 64 stages. The biases are not 0,
    # so a bubble has a nonzero output.
    w = np.zeros((n, width, width), np.float32)
    for stage in w:
        stage[np.arange(width), draw.rng.permutation(width)] = draw.rng.choice([0.5, 1.0], width)
    b = draw.rng.integers(1, 4, (n, width)).astype(np.float32)
    x = draw.rng.integers(-9, 10, (n_micro * draw.scale, width)).astype(np.float32)
    return {"stages": {"w": w, "b": b}, "x": x, "n_micro": n_micro}


def expected(mesh, stages, x, n_micro):
    for w, b in zip(stages["w"], stages["b"], strict=True):
        x = np.maximum(x @ w + b, 0)
    return x


def input_specs(mesh):
    return {"stages": Spec(mesh.axis_names[0])}


def output_specs(mesh):
    return Spec()


def budget(mesh, stages, x, n_micro):
    ticks = n_micro + mesh.axis_sizes[0] - 1
    # One microbatch to the next stage per tick, and one all-reduce of the result at the end.
    payload_bytes = ticks * (x.nbytes // n_micro) + x.nbytes
    return {"ppermute": ticks, "psum": 1, "payload_bytes": payload_bytes}
