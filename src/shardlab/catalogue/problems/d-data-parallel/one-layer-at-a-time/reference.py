"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    rng, n = draw.rng, draw.mesh.axis_sizes[0]
    # One case has the most layers that the statement allows, and two an odd number of them.
    odd = 1 + 2 * int(rng.integers(3, 6))
    layers = {2: odd, 3: 12, 4: odd}.get(draw.number, int(rng.integers(6, 13)))
    rows = int(rng.integers(1, 2 + draw.scale))
    # Wide enough that a full layer is larger than the activations of a device.
    width = n * int(rng.integers(max(1, 16 // n), max(2, 24 // n) + 1))
    # In one case the batch is as large as the width, in one a device has one row of a layer.
    rows = width // n if draw.number == 4 else rows
    width = n if draw.number == 9 else width
    # Eight entries per row that are not 0, so that values stay small through all layers.
    w = np.zeros((layers, width, width), np.float32)
    for layer in w:
        for _ in range(8):
            entries = rng.integers(-256, 385, width) / 512
            layer[np.arange(width), rng.permutation(width)] = entries
    # The first and the last weight are not 0, and one of all is large.
    w[0, 0, 0], w[-1, -1, -1] = rng.choice([-0.75, 0.75], 2)
    w[tuple(map(rng.integers, w.shape))] = rng.choice([-10, 10])
    # One case has activations above 1e4. A power of two rounds nothing.
    factor = 2**14 if draw.number == 5 and draw.scale > 1 else 1
    return {"w_shards": w, "x": factor * draw.numbers(n * rows, width)}


def expected(mesh, w_shards, x):
    for w in w_shards:
        x = np.maximum(x @ w, 0)
    return x


def input_specs(mesh):
    axis = mesh.axis_names[0]
    return {"w_shards": Spec(None, axis), "x": Spec(axis)}


def output_specs(mesh):
    return Spec(mesh.axis_names[0])


def budget(mesh, w_shards, x):
    n, layers, one_layer = mesh.axis_sizes[0], len(w_shards), w_shards[0].nbytes
    if n == 1:
        return {}  # nothing is sharded, so there is no memory to save
    # Weight shards, three full layers and ten activation shards, including x and the result.
    peak_bytes = w_shards.nbytes // n + 3 * one_layer + 10 * (x.nbytes // n)
    wire_bytes = layers * one_layer * (n - 1) // n
    return {"all_gather": layers, "wire_bytes": wire_bytes, "peak_bytes": peak_bytes}
