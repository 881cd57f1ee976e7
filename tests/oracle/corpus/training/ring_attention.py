"""Ring attention: keys and values rotate over `seq`; the softmax is accumulated online."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "seq=4"


def ring_attention(q, k, v):
    n, index = lax.axis_size("seq"), lax.axis_index("seq")
    length = q.shape[1]
    pairs = [(i, (i + 1) % n) for i in range(n)]
    q_positions = index * length + jnp.arange(length)

    def one_block(carry, i):
        k, v, acc, total, largest = carry
        k_positions = (index - i) % n * length + jnp.arange(length)
        scores = jnp.einsum("bqd,bkd->bqk", q, k) / q.shape[-1] ** 0.5
        scores = jnp.where(q_positions[:, None] >= k_positions, scores, -1e9)
        new_largest = jnp.maximum(largest, scores.max(-1))
        powers = jnp.exp(scores - new_largest[..., None])
        rescale = jnp.exp(largest - new_largest)
        acc = acc * rescale[..., None] + jnp.einsum("bqk,bkd->bqd", powers, v)
        total = total * rescale + powers.sum(-1)
        k = lax.ppermute(k, "seq", pairs)
        v = lax.ppermute(v, "seq", pairs)
        return (k, v, acc, total, new_largest), None

    start = (k, v, jnp.zeros_like(q), jnp.zeros_like(q[..., 0]), jnp.full_like(q[..., 0], -1e9))
    (_, _, acc, total, _), _ = lax.scan(one_block, start, jnp.arange(n))
    return acc / total[..., None]


@functools.partial(jax.jit, donate_argnums=(0,))
def step(q, k, v):
    spec = P(None, "seq")
    return jax.shard_map(ring_attention, in_specs=(spec,) * 3, out_specs=spec)(q, k, v)


def reference(q, k, v):
    scores = jnp.einsum("bqd,bkd->bqk", q, k) / q.shape[-1] ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), v)


def example_args():
    rng = np.random.default_rng(12)
    return tuple(jnp.asarray(2 * rng.normal(size=(2, 24, 4)), jnp.float32) for _ in range(3))


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="accumulator_not_rescaled",
        old='acc * rescale[..., None] + jnp.einsum("bqk,bkd->bqd", powers, v)',
        new='acc + jnp.einsum("bqk,bkd->bqd", powers, v)',
    ),
    Bug(
        name="values_not_rotated",
        old='        v = lax.ppermute(v, "seq", pairs)\n',
        new="",
    ),
    Bug(
        name="queries_without_offset",
        old="q_positions = index * length + jnp.arange(length)",
        new="q_positions = jnp.arange(length)",
        causes=("only_shard_0",),
    ),
    Bug(
        name="keys_of_the_wrong_block",
        old="(index - i) % n * length",
        new="(index + i) % n * length",
        causes=("reversed_ppermute",),
    ),
    Bug(
        name="denominator_not_rescaled",
        old="total = total * rescale + powers.sum(-1)",
        new="total = total + powers.sum(-1)",
    ),
    Bug(
        name="one_block_missing",
        old="lax.scan(one_block, start, jnp.arange(n))",
        new="lax.scan(one_block, start, jnp.arange(max(n - 1, 1)))",
    ),
    Bug(
        name="mask_by_local_positions",
        old="        k_positions = (index - i) % n * length + jnp.arange(length)\n",
        new="        k_positions = jnp.arange(length)\n",
        also=(
            (
                "q_positions = index * length + jnp.arange(length)",
                "q_positions = jnp.arange(length)",
            ),
        ),
    ),
)
