"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec


def inputs(draw):
    rng, n = draw.rng, draw.mesh.axis_sizes[0]
    # One position per device is the smallest block.
    length = n * int(rng.integers(1, 3 + draw.scale))
    dim, dim_v = map(int, rng.integers(1, 6 + draw.scale, 2))
    if draw.scale > 1:
        # Some cases have the size of a real head, and in one q is a square.
        dim = int(rng.integers(17, 33)) if draw.number in (2, 5) else dim
        length, dim = (2 * length, 2 * length) if draw.number == 6 else (length, dim)
    q, k = draw.numbers(length, dim, largest=2), draw.numbers(length, dim, largest=2)
    k[rng.integers(length)] *= 5  # one key that is large
    k[~k.any(axis=1), 0] = 1  # no key is 0, so that the next lines give large scores
    # At random, but both kinds are certain on several devices; causal is, on the simulated mesh.
    causal = {1: False, 2: True, 3: False, 9: True}.get(draw.number, bool(rng.integers(2)))
    # Some queries have scores above 100 or below -100: exponentials that overflow float32, or that
    # are all 0. With causal, the first query has no other key than the first.
    for query in rng.integers(0, length, 1 + length // 4):
        q[query] = k[rng.integers(0, query + 1)]
        scores = (k[: query + 1] if causal else k) @ q[query]
        q[query] *= rng.uniform(120, 200) * np.sqrt(dim) / abs(scores).max()
    if causal:
        # All scores of a query can be near the smallest: a mask of -300 would be above them.
        low, high = (350, 430) if draw.number == 2 else (120, 200)
        q[0] = -k[0] * rng.uniform(low, high) * np.sqrt(dim) / (k[0] @ k[0])
    if draw.number == 3:
        q[0, 0] = rng.choice([-1, 1])  # the first query matters, with scores of any size
        q[0, 1:] = draw.numbers(dim - 1, largest=2)
    v = draw.numbers(length, dim_v)
    if draw.number == 1 and draw.scale > 1:
        add_high_scores(rng, q, k, v)
    if draw.number == 4 and draw.scale > 1:
        v *= 2**12
    return {"q": q, "k": k, "v": v, "causal": causal}


def add_high_scores(rng, q, k, v):
    """Give one query two scores near the largest, of keys with different values.

    The second one is so much lower that its key has no weight, unless both are clipped.
    """
    best = int(np.linalg.norm(k, axis=1).argmax())
    second = (best + int(rng.integers(1, len(k)))) % len(k)
    k[second] = 0.875 * k[best]
    q[-1] = k[best] * rng.uniform(400, 430) * np.sqrt(q.shape[1]) / (k[best] @ k[best])
    v[best, 0], v[second, 0] = rng.permutation([-5, 5])


def expected(mesh, q, k, v, causal):
    scores = q.astype(np.float64) @ k.T / np.sqrt(q.shape[1])
    if causal:
        positions = np.arange(len(q))
        scores = np.where(positions[:, None] >= positions, scores, -np.inf)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return np.float32(weights / weights.sum(1, keepdims=True) @ v)


def input_specs(mesh):
    return dict.fromkeys("qkv", Spec(mesh.axis_names[0]))


def output_specs(mesh):
    return Spec(mesh.axis_names[0])


def budget(mesh, q, k, v, causal):
    n = mesh.axis_sizes[0]
    # Once around the ring, for k and for v.
    return {"ppermute": 2 * n, "wire_bytes": k.nbytes + v.nbytes}
