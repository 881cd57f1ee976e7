"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec

LEARNING_RATE, B1, B2, EPS = 0.1, 0.9, 0.999, 1e-8


def inputs(draw):
    shape = (draw.mesh.axis_sizes[0] * (1 + draw.scale), 1 + draw.scale)

    def random_integers(low, high):
        return draw.rng.integers(low, high, shape).astype(np.float32)

    return {
        "params": random_integers(-4, 5),
        "grads": random_integers(1, 9) * draw.rng.choice(np.float32([-1, 1]), shape),
        "m": random_integers(-2, 3),
        "v": random_integers(1, 9),
        # Every fourth case has a large t, for which the bias corrections are almost 1.
        "t": 20_000 if draw.number % 4 == 3 else 1 + draw.number % 4,
    }


def expected(mesh, params, grads, m, v, t):
    p, g, m, v = (array.astype(np.float64) for array in (params, grads, m, v))
    m = B1 * m + (1 - B1) * g
    v = B2 * v + (1 - B2) * g**2
    p = p - LEARNING_RATE * (m / (1 - B1**t)) / (np.sqrt(v / (1 - B2**t)) + EPS)
    return p.astype(np.float32), m.astype(np.float32), v.astype(np.float32)


def input_specs(mesh):
    axis = mesh.axis_names[0]
    return {"m": Spec(axis), "v": Spec(axis)}


def output_specs(mesh):
    axis = mesh.axis_names[0]
    return Spec(), Spec(axis), Spec(axis)


def budget(mesh, params, grads, m, v, t):
    n = mesh.axis_sizes[0]
    return {"wire_bytes": params.nbytes * (n - 1) // n}
