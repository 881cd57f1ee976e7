"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    rng, n = draw.rng, draw.mesh.axis_sizes[0]
    rows, d_in, d_out = map(int, rng.integers(1, 3 + draw.scale, 3))
    params = {"w": draw.numbers(d_in, d_out), "b": draw.numbers(d_out)}
    if draw.number == 2:
        params["b"][0] = 0  # a bias that is 0, whatever the others are
    x, y = draw.numbers(n * rows, d_in), draw.numbers(n * rows, d_out)
    # The gradient in b is never 0, so that a step of the wrong length is visible.
    y[0] += (x @ params["w"] + params["b"] - y).sum(0) == 0
    return {"params": params, "x": x, "y": y, "lr": int(rng.integers(1, 150)) / 100}


def accepts(mesh, params, x, y, lr):
    return lr > 0


def expected(mesh, params, x, y, lr):
    # Float64, so that the tolerance covers only the rounding of the submission.
    w, b = params["w"].astype(np.float64), params["b"].astype(np.float64)
    error = x @ w + b - y
    error_grad = 2 * error / error.size
    new_params = {"w": w - lr * (x.T @ error_grad), "b": b - lr * error_grad.sum(0)}
    loss = np.float32(np.mean(error**2))
    return {name: param.astype(np.float32) for name, param in new_params.items()}, loss


def input_specs(mesh):
    axis = mesh.axis_names[0]
    return {"x": Spec(axis), "y": Spec(axis)}


def output_specs(mesh):
    return Spec()
