"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    batch, d_in, d_out = n * (1 + draw.scale), 2 + draw.scale, 1 + draw.scale

    def random_integers(*shape):
        return draw.rng.integers(-4, 5, shape).astype(np.float32)

    params = {"w": random_integers(d_in, d_out), "b": random_integers(d_out)}
    return {
        "params": params,
        "x": random_integers(batch, d_in),
        "y": random_integers(batch, d_out),
        "lr": 0.5,
    }


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
