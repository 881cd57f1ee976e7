"""Inputs from a seed, and the right answer in plain NumPy."""

import numpy as np
from shardlab.layouts.spec import Spec


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    width = 2 + draw.scale
    # Fewer microbatches than stages, as many, and more.
    n_micro = (3, 2, 4, 5)[draw.number % 4]
    # One entry of 1 or 0.5 in each row, and biases that are not 0: values stay small through 64
    # stages, and a stage that works on nothing gives something.
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
    # A microbatch to the next stage at every tick, and the result to everybody at the end.
    sent = ticks * (x.nbytes // n_micro) + x.nbytes
    return {"ppermute": ticks, "psum": 1, "payload_bytes": sent}
