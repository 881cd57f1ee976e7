"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    m, n = draw.mesh.axis_sizes[:2]
    batch, features = m * (1 + draw.scale), n * draw.scale

    def random_integers(*shape):
        return draw.rng.integers(-4, 5, shape).astype(np.float32)

    return {
        "w": random_integers(features),
        "x": random_integers(batch, features),
        "y": random_integers(batch),
    }


def expected(mesh, w, x, y):
    error = (x @ w - y).astype(np.float64)
    return np.float32(np.mean(error**2)), np.float32(2 * x.T @ error / len(error))


def input_specs(mesh):
    data, model = mesh.axis_names[:2]
    return {"w": Spec(model), "x": Spec(data, model), "y": Spec(data)}


def output_specs(mesh):
    return Spec(), Spec(mesh.axis_names[1])
