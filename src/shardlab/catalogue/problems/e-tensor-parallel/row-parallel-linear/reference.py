"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    rng, n = draw.rng, draw.mesh.axis_sizes[0]
    batch, d_out, features = map(int, rng.integers(1, 4 + draw.scale, 3))

    def random_integers(*shape):
        return rng.integers(-4, 5, shape).astype(np.float32)

    return {
        "x": random_integers(batch, n * features),
        "w": random_integers(n * features, d_out),
        "b": rng.integers(-9, 10, d_out).astype(np.float32),
    }


def expected(mesh, x, w, b):
    return x @ w + b


def input_specs(mesh):
    axis = mesh.axis_names[0]
    return {"x": Spec(None, axis), "w": Spec(axis, None)}


def output_specs(mesh):
    return Spec()


def budget(mesh, x, w, b):
    # One all-reduce of the result.
    return {"payload_bytes": 4 * x.shape[0] * w.shape[1]}
