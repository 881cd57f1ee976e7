"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    rng, (m, n) = draw.rng, draw.mesh.axis_sizes[:2]
    rows, columns = map(int, rng.integers(1, 3 + draw.scale, 2))
    x, w, y = draw.numbers(m * rows, n * columns), draw.numbers(n * columns), None
    x[0] += not x[0].any()
    # A gradient of 0 would be right for any number of devices that it is added up over.
    while y is None or not (x.T @ (x @ w - y)).any():
        y = draw.numbers(m * rows)
    if draw.number == 5 and draw.scale > 1:
        x, y = x * 2**10, y * 2**10  # squared errors above 1e6; a power of two rounds nothing
    return {"w": w, "x": x, "y": y}


def expected(mesh, w, x, y):
    error = (x @ w - y).astype(np.float64)
    return np.float32(np.mean(error**2)), np.float32(2 * x.T @ error / len(error))


def input_specs(mesh):
    data, model = mesh.axis_names[:2]
    return {"w": Spec(model), "x": Spec(data, model), "y": Spec(data)}


def output_specs(mesh):
    return Spec(), Spec(mesh.axis_names[1])
