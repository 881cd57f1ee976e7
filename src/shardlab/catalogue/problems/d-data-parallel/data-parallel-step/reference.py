"""Inputs from a seed, and the right answer in plain NumPy."""

import numpy as np
from shardlab.layouts.spec import Spec


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    batch, d_in, d_out = n * (1 + draw.scale), 2 + draw.scale, 1 + draw.scale

    def whole(*shape):
        return draw.rng.integers(-4, 5, shape).astype(np.float32)

    params = {"w": whole(d_in, d_out), "b": whole(d_out)}
    return {"params": params, "x": whole(batch, d_in), "y": whole(batch, d_out), "lr": 0.5}


def expected(mesh, params, x, y, lr):
    # Float64, so that the judge's tolerance is spent on the answer's rounding alone.
    w, b = params["w"].astype(np.float64), params["b"].astype(np.float64)
    error = x @ w + b - y
    slope = 2 * error / error.size
    stepped = {"w": w - lr * (x.T @ slope), "b": b - lr * slope.sum(0)}
    loss = np.float32(np.mean(error**2))
    return {name: each.astype(np.float32) for name, each in stepped.items()}, loss


def input_specs(mesh):
    axis = mesh.axis_names[0]
    return {"x": Spec(axis), "y": Spec(axis)}


def output_specs(mesh):
    return Spec()
