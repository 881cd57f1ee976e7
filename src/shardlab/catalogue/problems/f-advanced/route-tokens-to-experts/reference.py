"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    rng, n = draw.rng, draw.mesh.axis_sizes[0]
    tokens, width = int(rng.integers(2, 5 + draw.scale)), int(rng.integers(1, 3 + draw.scale))

    def random_integers(*shape):
        return rng.integers(-3, 4, shape).astype(np.float32)

    x = random_integers(n * tokens, width)
    # Small scores, so that no probability is almost 1 and omitting the weight is detected.
    gate = random_integers(width, n) / 4
    # A number for all experts together changes no probability, but exponentials of such scores
    # overflow float32 or are all 0.
    gate += 32 * random_integers(width, 1)
    # A token of zeros has the same score for every expert.
    x[rng.integers(len(x), size=1 + len(x) // 8)] = 0
    # Any capacity: for one token, for some, for all, and for more than there are.
    capacity = {2: 1, 3: 2}.get(draw.number, int(rng.integers(1, tokens + 2)))
    return {"x": x, "gate": gate, "w": random_integers(n, width, width), "capacity": capacity}


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
