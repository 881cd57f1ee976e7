"""Ring attention, blocks merged by their logsumexp; causal, with a loop over the hops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "seq=4"
HEADS, HEAD_DIM, LEARNING_RATE = 2, 4, 0.1
HIDDEN_SCORE = -1e9


def attend(q, k, v, q_start, k_start):
    """Return the attention to one block, and the logsumexp of its scores."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / HEAD_DIM**0.5
    q_position = q_start + jnp.arange(q.shape[1])
    k_position = k_start + jnp.arange(k.shape[1])
    scores = jnp.where(q_position[:, None] >= k_position[None], scores, HIDDEN_SCORE)
    lse = jax.nn.logsumexp(scores, -1)
    out = jnp.einsum("bhqk,bkhd->bhqd", jnp.exp(scores - lse[..., None]), v)
    return out, lse


def merge(out, lse, new_out, new_lse):
    """Return the attention to two sets of keys from that to each."""
    both = jnp.logaddexp(lse, new_lse)
    old_weight = jnp.exp(lse - both)[..., None]
    new_weight = jnp.exp(new_lse - both)[..., None]
    return out * old_weight + new_out * new_weight, both


def ring_attention(q, k, v):
    n, rank = lax.axis_size("seq"), lax.axis_index("seq")
    block = q.shape[1]
    ring = [(i, (i + 1) % n) for i in range(n)]
    out, lse = attend(q, k, v, rank * block, rank * block)
    for hop in range(1, n):
        k, v = lax.ppermute((k, v), "seq", ring)
        owner = (rank - hop) % n
        new_out, new_lse = attend(q, k, v, rank * block, owner * block)
        out, lse = merge(out, lse, new_out, new_lse)
    return out


def step(params, x, y):
    spec = P(None, "seq")

    def loss_fn(params):
        q, k, v = (jnp.einsum("btd,dhe->bthe", x, params[name]) for name in "qkv")
        out = jax.shard_map(
            ring_attention, in_specs=(spec, spec, spec), out_specs=P(None, None, "seq")
        )(q, k, v)
        return jnp.mean((jnp.einsum("bhte,hed->btd", out, params["o"]) - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads), loss


def reference(params, x, y):
    def loss_fn(params):
        q, k, v = (jnp.einsum("btd,dhe->bthe", x, params[name]) for name in "qkv")
        out, _ = attend(q, k, v, 0, 0)
        return jnp.mean((jnp.einsum("bhte,hed->btd", out, params["o"]) - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads), loss


def example_args():
    rng = np.random.default_rng(61)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / 2, jnp.float32)

    params = {name: 2 * normal(6, HEADS, HEAD_DIM) for name in "qkv"}
    params["o"] = normal(HEADS, HEAD_DIM, 6)
    return params, 2 * normal(2, 24, 6), normal(2, 24, 6)


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="sum_not_rescaled_before_the_next_block",
        old="    return out * old_weight + new_out * new_weight, both\n",
        new="    return out + new_out * new_weight, both\n",
    ),
    Bug(
        name="ring_in_the_other_direction",
        old="ring = [(i, (i + 1) % n) for i in range(n)]",
        new="ring = [((i + 1) % n, i) for i in range(n)]",
        causes=("reversed_ppermute",),
    ),
    Bug(
        name="blocks_averaged",
        old="    return out * old_weight + new_out * new_weight, both\n",
        new="    return (out + new_out) / 2, both\n",
    ),
    Bug(
        name="last_hop_missing",
        old="for hop in range(1, n):",
        new="for hop in range(1, n - 1):",
    ),
    Bug(
        name="keys_without_the_offset_of_their_owner",
        old="attend(q, k, v, rank * block, owner * block)",
        new="attend(q, k, v, rank * block, rank * block)",
    ),
)
