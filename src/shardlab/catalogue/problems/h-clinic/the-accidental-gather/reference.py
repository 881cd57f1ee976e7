"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    n_data, n_model = draw.mesh.axis_sizes
    k = draw.scale
    # Hidden is the widest by far: sending it, or a weight, costs more than sending the result.
    batch, features, hidden, out = 2 * n_data, 3, 8 * n_model * k, 5
    shapes = {"x": (batch, features), "w1": (features, hidden), "w2": (hidden, out)}
    return {
        name: draw.rng.integers(-3, 4, shape).astype(np.float32) for name, shape in shapes.items()
    }


def input_specs(mesh):
    data, model = mesh.axis_names
    return {"x": Spec(data, None), "w1": Spec(None, model), "w2": Spec(model, None)}


def expected(mesh, x, w1, w2):
    return np.maximum(x @ w1, 0) @ w2


def output_specs(mesh):
    return Spec(mesh.axis_names[0], None)


def budget(mesh, x, w1, w2):
    # One all-reduce of the local rows of the result.
    return {"payload_bytes": len(x) // mesh.axis_sizes[0] * w2.shape[1] * 4}
