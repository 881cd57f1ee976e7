"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    rng, n = draw.rng, draw.mesh.axis_sizes[0]
    rows, d_in, d_out = map(int, rng.integers(1, 3 + draw.scale, 3))
    if draw.number == 3:
        d_in = d_out = int(rng.integers(2, 5))  # a square w could be transposed by mistake
    params = {"w": draw.numbers(d_in, d_out), "b": draw.numbers(d_out)}
    if draw.number == 2:
        params["b"][0] = 0  # a bias that is 0, whatever the others are
    x, y = draw.numbers(n * rows, d_in), draw.numbers(n * rows, d_out)
    # The gradient in b is never 0, so that a step of the wrong length is visible.
    y[0] += (x @ params["w"] + params["b"] - y).sum(0) == 0
    if draw.number == 6 and draw.scale > 1:
        # Errors above 1e4 and gradients above 1e6. A power of two rounds nothing.
        x, y, params["b"] = (np.float32(2**10 * array) for array in (x, y, params["b"]))
    return {"params": params, "x": x, "y": y, "lr": draw_rate(draw)}


def draw_rate(draw):
    """Return a learning rate; no step at all, a very short one and the longest are certain."""
    if draw.scale == 1:
        return int(draw.rng.integers(1, 150)) / 100
    # Four digits: a rate that is rounded to two would be another one. It is 0 on one device only,
    # because a wrong gradient has no effect there.
    low, high = {0: (0, 0), 2: (0.0005, 0.004), 3: (1.6, 2)}.get(draw.number, (0.001, 2))
    return round(float(draw.rng.uniform(low, high)), 4)


def accepts(mesh, params, x, y, lr):
    return 0 <= lr <= 2


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
