"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    rng, (n_data, n_model) = draw.rng, draw.mesh.axis_sizes
    rows, features, out = map(int, rng.integers([1, 1, 1], [4, 5, 6]))
    # Hidden is the widest by far: sending it, or a weight, costs more than sending the result.
    batch, hidden = n_data * rows, n_model * int(rng.integers(8, 8 + 8 * draw.scale))
    shapes = {"x": (batch, features), "w1": (features, hidden), "w2": (hidden, out)}
    arrays = {name: draw.numbers(*shape) for name, shape in shapes.items()}
    if draw.number == 5 and draw.scale > 1:
        arrays["x"] *= 2**14  # hidden units above 1e4; a power of two rounds nothing
    return arrays


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
