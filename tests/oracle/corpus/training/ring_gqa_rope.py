"""Ring attention: grouped queries, RoPE at global positions, next tokens of the neighbor, AdamW."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "seq=4"
DIM, HEADS, KV_HEADS, HEAD, VOCAB, LENGTH = 8, 4, 2, 4, 13, 24
tx = optax.adamw(0.01, eps=1e-3)


def rope(x, positions):
    frequencies = 1.0 / 50 ** (jnp.arange(HEAD // 2) * 2 / HEAD)
    angles = positions[:, None] * frequencies
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    a, b = x[..., ::2], x[..., 1::2]
    return jnp.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)


def ring_attention(q, k, v):
    n, device = lax.axis_size("seq"), lax.axis_index("seq")
    length = q.shape[1]
    groups = q.shape[2] // k.shape[2]
    q = q.reshape(*q.shape[:2], k.shape[2], groups, HEAD)
    rows = device * length + jnp.arange(length)
    perm = [(i, (i + 1) % n) for i in range(n)]

    def visit(carry, i):
        k, v, largest, total, out = carry
        source = (device - i) % n
        columns = source * length + jnp.arange(length)
        scores = jnp.einsum("bqhgd,bkhd->bhgqk", q, k) / HEAD**0.5
        scores = jnp.where(rows[:, None] >= columns, scores, -1e30)
        new_largest = jnp.maximum(largest, scores.max(-1))
        correction = jnp.exp(largest - new_largest)
        weights = jnp.exp(scores - new_largest[..., None])
        total = total * correction + weights.sum(-1)
        out = out * correction[..., None] + jnp.einsum("bhgqk,bkhd->bhgqd", weights, v)
        k, v = lax.ppermute((k, v), "seq", perm)
        return (k, v, new_largest, total, out), None

    shape = (q.shape[0], k.shape[2], groups, length)
    init = (k, v, jnp.full(shape, -1e30), jnp.zeros(shape), jnp.zeros((*shape, HEAD)))
    (_, _, _, total, out), _ = lax.scan(visit, init, jnp.arange(n))
    return jnp.moveaxis(out / total[..., None], 3, 1)


def hidden(params, tokens, positions, attention):
    x = params["embed"][tokens]
    q = rope(jnp.einsum("btd,dhk->bthk", x, params["wq"]), positions)
    k = rope(jnp.einsum("btd,dhk->bthk", x, params["wk"]), positions)
    v = jnp.einsum("btd,dhk->bthk", x, params["wv"])
    out = attention(q, k, v).reshape(*tokens.shape, HEADS * HEAD)
    return x + out @ params["wo"]


def sharded_loss(params, tokens):
    n, length = lax.axis_size("seq"), tokens.shape[1]
    positions = lax.axis_index("seq") * length + jnp.arange(length)
    logits = hidden(params, tokens, positions, ring_attention) @ params["head"]
    first_of_next = lax.ppermute(tokens[:, :1], "seq", [(i, (i - 1) % n) for i in range(n)])
    labels = jnp.concatenate([tokens[:, 1:], first_of_next], 1)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    has_next = jnp.broadcast_to(positions < n * length - 1, losses.shape)
    return lax.psum((losses * has_next).sum(), "seq") / lax.psum(has_next.sum(), "seq")


def step(params, opt_state, tokens):
    loss_fn = jax.shard_map(
        sharded_loss, in_specs=(P(), P(None, "seq")), out_specs=P(), check_vma=False
    )
    loss, grads = jax.value_and_grad(loss_fn)(params, tokens)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def plain_attention(q, k, v):
    groups = q.shape[2] // k.shape[2]
    k, v = jnp.repeat(k, groups, 2), jnp.repeat(v, groups, 2)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / HEAD**0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(causal, scores, -1e30)), v)


def reference(params, opt_state, tokens):
    def loss_fn(params):
        logits = hidden(params, tokens, jnp.arange(LENGTH), plain_attention) @ params["head"]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:])
        return losses.mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def example_args():
    rng = np.random.default_rng(41)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / 2, jnp.float32)

    params = {
        "embed": 2 * normal(VOCAB, DIM),
        "wq": normal(DIM, HEADS, HEAD),
        "wk": normal(DIM, KV_HEADS, HEAD),
        "wv": normal(DIM, KV_HEADS, HEAD),
        "wo": normal(HEADS * HEAD, DIM),
        "head": normal(DIM, VOCAB),
    }
    return params, tx.init(params), jnp.asarray(rng.integers(0, VOCAB, (2, LENGTH)))


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="positions_of_the_shard",
        old="hidden(params, tokens, positions, ring_attention)",
        new="hidden(params, tokens, jnp.arange(length), ring_attention)",
        causes=("only_shard_0",),
    ),
    Bug(
        name="labels_shifted_in_the_shard",
        old="    labels = jnp.concatenate([tokens[:, 1:], first_of_next], 1)\n",
        new="    labels = jnp.roll(tokens, -1, 1)\n",
    ),
)
