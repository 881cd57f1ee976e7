"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    rng, n = draw.rng, draw.mesh.axis_sizes[0]
    # On one device at least three tokens, on some meshes five with a capacity of 1: some of them
    # are dropped.
    is_crowded = draw.number in (2, 3, 6, 7)
    # With many experts, tokens of a device are rarely for the same one. So on every other device
    # all tokens are equal, and any capacity that is too small drops some.
    has_equal_tokens = draw.number in (9, 10)
    tokens = int(rng.integers(5 if is_crowded else 1 if draw.number else 3, 5 + draw.scale))
    if has_equal_tokens:
        tokens = int(rng.integers(5, 9)) if n <= 64 else 3
    if draw.number == 4:
        tokens = 1
    if draw.number == 1 and draw.scale > 1:
        tokens = int(rng.integers(260, 290))  # too many of one expert to count in 8 bits
    width = 1 if draw.number == 5 or tokens > 250 else int(rng.integers(1, 3 + draw.scale))
    x = draw.numbers(n * tokens, width, largest=6)
    # Small scores, so that no probability is almost 1 and omitting the weight is detected. All
    # scores are exact, so that the largest one does not depend on rounding.
    gate = rng.integers(-8, 9, (width, n)).astype(np.float32) / 16
    if width > 1:
        # One feature that few tokens have decides alone: exponentials of its scores overflow
        # float32, and so do those of differences to any expert but the best.
        gate[0] *= 256
        x[rng.random(len(x)) < 0.7, 0] = 0
        # Another one is the same for all experts. It changes no probability, but exponentials
        # overflow or are all 0.
        gate[1] += rng.choice([-64, 0, 64])
    # Half of the experts have the scores of another one: ties, of tokens that are not 0 too.
    if n > 2 or rng.random() < 0.5:
        experts = rng.permutation(n)
        gate[:, experts[: n // 2]] = gate[:, experts[n // 2 : n // 2 * 2]]
    order = rng.permutation(width)
    x, gate = x[:, order], gate[order]
    # A token of zeros has the same score for every expert, and one is large. The last one is not 0.
    x[rng.integers(len(x), size=1 + len(x) // 8)] = 0
    x[-1] += not x[-1].any()
    x[rng.integers(len(x))] *= 4
    if has_equal_tokens:
        shards = x.reshape(n, tokens, width)
        shards[::2] = shards[::2, -1:]
    # Any capacity: for one token, for some, for all, and for more than there are. On one device all
    # tokens are in one queue, and the last one is dropped.
    low, high = (1, 2) if is_crowded else (1, tokens + 2)
    low, high = (low, high) if draw.number else (tokens - 1, tokens)
    low, high = (3 if n <= 64 else 1, tokens) if has_equal_tokens else (low, high)
    capacity = int(rng.integers(low, high))
    if draw.number == 4:
        capacity = int(rng.integers(3, 6))  # for one token: many empty slots
    w = draw.numbers(n, width, width)
    if draw.number == 6 and draw.scale > 1:
        w *= 2**12
    if draw.number == 0:
        # The first and the last token that is processed are not 0, nor is their result.
        x[[0, -2], -1] += x[[0, -2], -1] == 0
        w[-1, -1, -1] += w[-1, -1, -1] == 0
    return {"x": x, "gate": gate, "w": w, "capacity": capacity}


def accepts(mesh, x, gate, w, capacity):
    return capacity > 0


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
