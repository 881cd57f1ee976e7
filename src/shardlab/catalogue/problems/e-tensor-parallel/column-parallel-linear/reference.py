"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    rng, n = draw.rng, draw.mesh.axis_sizes[0]
    batch, d_in = map(int, rng.integers(1, 4 + draw.scale, 2))
    # One case has many rows, one many input features.
    batch = int(rng.integers(30, 70)) if draw.number == 3 else batch
    d_in = int(rng.integers(30, 70)) if draw.number == 5 else d_in
    # On several devices at least two columns for each: the order within a shard matters too, and
    # a bias of another length is not broadcast.
    d_out = n * int(rng.integers(1 if n == 1 else 2, 3 + draw.scale))
    # In one case w is a square, in one there is one column, and one has large numbers.
    d_in = d_out if draw.number == 2 else d_in
    d_out = 1 if draw.number == 0 and draw.scale > 1 else d_out
    factor = 2**12 if draw.number == 6 and draw.scale > 1 else 1
    return {
        "x": factor * draw.numbers(batch, d_in),
        "w": draw.numbers(d_in, d_out),
        "b": factor * draw.numbers(d_out),
    }


def expected(mesh, x, w, b):
    return x @ w + b


def input_specs(mesh):
    axis = mesh.axis_names[0]
    return {"w": Spec(None, axis), "b": Spec(axis)}


def output_specs(mesh):
    return Spec(None, mesh.axis_names[0])
