"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import numpy as np

from shardlab import Spec

DIM = 4


def inputs(draw):
    length = draw.mesh.axis_sizes[0] * (1 + draw.scale)

    def random_integers():
        return draw.rng.integers(-2, 3, (length, DIM)).astype(np.float32)

    q, k = random_integers(), random_integers()
    # A score of 128, whose exponential overflows float32.
    q[-1], k[0, -1] = (0, 0, 0, 64), 4
    v = draw.rng.integers(-9, 10, (length, DIM + 1)).astype(np.float32)
    # The last of ten cases, the largest mesh, is causal too: most of its blocks are masked.
    return {"q": q, "k": k, "v": v, "causal": draw.number % 3 != 1}


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
