"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    n = draw.mesh.axis_sizes[0]
    tokens, width = 3 + draw.scale, 1 + draw.scale

    def random_integers(*shape):
        return draw.rng.integers(-3, 4, shape).astype(np.float32)

    # Capacity for some tokens, for few, and for all.
    capacity = (2, 1, tokens)[draw.number % 3]
    # Small scores, so that no probability is almost 1 and omitting the weight is detected.
    gate = random_integers(width, n) / 4
    return {
        "x": random_integers(n * tokens, width),
        "gate": gate,
        "w": random_integers(n, width, width),
        "capacity": capacity,
    }


def expected(mesh, x, gate, w, capacity):
    n = mesh.axis_sizes[0]
    scores = x @ gate
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    result = np.zeros_like(x)
    for shard in np.split(np.arange(len(x)), n):
        queue_lengths = np.zeros(n, int)
        for token in shard:
            expert = int(scores[token].argmax())
            if queue_lengths[expert] < capacity:
                result[token] = weights[token, expert] * (x[token] @ w[expert])
            queue_lengths[expert] += 1
    return result


def input_specs(mesh):
    axis = mesh.axis_names[0]
    return {"x": Spec(axis), "w": Spec(axis)}


def output_specs(mesh):
    return Spec(mesh.axis_names[0])


def budget(mesh, x, gate, w, capacity):
    # Two all_to_alls with `capacity` slots per expert.
    return {"payload_bytes": 2 * 4 * mesh.axis_sizes[0] * capacity * x.shape[1]}
