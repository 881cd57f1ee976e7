"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    rng, n = draw.rng, draw.mesh.axis_sizes[0]
    batch, d_out, k, units = map(int, rng.integers(1, 3 + draw.scale, 4))
    # d_in is divisible by n too, so that sharding the wrong dimension does not raise; on 512
    # devices that is wide enough.
    d_in, hidden = (n * k, n * units) if n <= 64 else (n, n * min(units, 2))
    d_in = 1 if draw.number == 0 else d_in
    # In sums of hundreds of large products, a bias would be below the tolerance.
    largest = 10 if n <= 8 else 2
    b2 = draw.numbers(d_out)
    # Some elements are 0, and one is large.
    b2[: d_out // 2] = 0
    b2[-1] = rng.choice([-1, 1]) * (3 if draw.scale == 1 else rng.integers(520, 640) / 64)
    b2 = rng.permutation(b2)
    x, b1 = draw.numbers(batch, d_in), draw.numbers(hidden)
    if draw.number in (3, 6):
        # Hidden units around 1e-4, and a result small enough to show each of them.
        x, b1, b2 = x * 2.0**-20, b1 * 2.0**-16, b2 * 2.0**-10
    if draw.number == 5 and draw.scale > 1:
        x, b1, b2 = x * 2**14, b1 * 2**14, b2 * 2**14  # hidden units above 1e4
    return {
        "x": np.float32(x),
        "w1": draw.numbers(d_in, hidden, largest=largest),
        "b1": np.float32(b1),
        "w2": draw.numbers(hidden, d_out, largest=largest),
        "b2": np.float32(b2),
    }


def expected(mesh, x, w1, b1, w2, b2):
    return np.maximum(x @ w1 + b1, 0) @ w2 + b2


def input_specs(mesh):
    axis = mesh.axis_names[0]
    return {"w1": Spec(None, axis), "b1": Spec(axis), "w2": Spec(axis, None)}


def output_specs(mesh):
    return Spec()


def budget(mesh, x, w1, b1, w2, b2):
    # One all-reduce of the result.
    return {"payload_bytes": 4 * x.shape[0] * w2.shape[1]}
