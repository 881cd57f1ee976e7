"""Tensor parallel: grouped-query attention with RoPE, SwiGLU, scan with remat, parallel logits."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "model=4"
DIM, HEADS, KV_HEADS, HEAD, HIDDEN, VOCAB, LAYERS, LENGTH = 12, 16, 8, 4, 16, 24, 2, 6
tx = optax.chain(optax.clip_by_block_rms(1.0), optax.sgd(0.05))
LAYER_SPECS = {
    "wq": P(None, None, "model", None),
    "wk": P(None, None, "model", None),
    "wv": P(None, None, "model", None),
    "wo": P(None, "model", None, None),
    "gate": P(None, None, "model"),
    "up": P(None, None, "model"),
    "down": P(None, "model", None),
    "norm1": P(),
    "norm2": P(),
}
SPECS = {"embed": P(), "layers": LAYER_SPECS, "norm": P(), "head": P(None, "model")}


def rms_norm(x, scale):
    return x * lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6) * scale


def rope(x):
    positions = jnp.arange(x.shape[1])
    frequencies = 1.0 / 100 ** (jnp.arange(HEAD // 2) * 2 / HEAD)
    angles = positions[:, None] * frequencies
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attention(q, k, v):
    groups = q.shape[2] // k.shape[2]
    k, v = jnp.repeat(k, groups, 2), jnp.repeat(v, groups, 2)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / HEAD**0.5
    causal = jnp.tril(jnp.ones((q.shape[1], q.shape[1]), bool))
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(causal, scores, -1e9)), v)


def block(x, p, reduce):
    h = rms_norm(x, p["norm1"])
    q = rope(jnp.einsum("btd,dhk->bthk", h, p["wq"]))
    k = rope(jnp.einsum("btd,dhk->bthk", h, p["wk"]))
    v = jnp.einsum("btd,dhk->bthk", h, p["wv"])
    x = x + reduce(jnp.einsum("bthk,hkd->btd", attention(q, k, v), p["wo"]))
    h = rms_norm(x, p["norm2"])
    return x + reduce((jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"])


def final_hidden(params, tokens, reduce):
    x = params["embed"][tokens]

    @jax.checkpoint
    def layer(x, p):
        return block(x, p, reduce), None

    x, _ = lax.scan(layer, x, params["layers"])
    return rms_norm(x, params["norm"])


def parallel_cross_entropy(logits, labels):
    """Return the cross entropy of each token; the vocabulary is sharded over `model`."""
    largest = lax.pmax(lax.stop_gradient(logits).max(-1), "model")
    shifted = logits - largest[..., None]
    log_z = jnp.log(lax.psum(jnp.exp(shifted).sum(-1), "model"))
    first = lax.axis_index("model") * logits.shape[-1]
    local = labels - first
    is_here = (local >= 0) & (local < logits.shape[-1])
    index = jnp.where(is_here, local, 0)
    picked = jnp.take_along_axis(shifted, index[..., None], -1)[..., 0]
    return log_z - lax.psum(jnp.where(is_here, picked, 0.0), "model")


def sharded_loss(params, tokens, labels):
    h = final_hidden(params, tokens, functools.partial(lax.psum, axis_name="model"))
    return parallel_cross_entropy(h @ params["head"], labels).mean()


def step(params, opt_state, tokens, labels):
    loss_fn = jax.shard_map(sharded_loss, in_specs=(SPECS, P(), P()), out_specs=P())
    loss, grads = jax.value_and_grad(loss_fn)(params, tokens, labels)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def reference(params, opt_state, tokens, labels):
    def loss_fn(params):
        logits = final_hidden(params, tokens, lambda x: x) @ params["head"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def example_args():
    rng = np.random.default_rng(33)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / 2, jnp.float32)

    layers = {
        "wq": normal(LAYERS, DIM, HEADS, HEAD),
        "wk": normal(LAYERS, DIM, KV_HEADS, HEAD),
        "wv": normal(LAYERS, DIM, KV_HEADS, HEAD),
        "wo": normal(LAYERS, HEADS, HEAD, DIM),
        "gate": normal(LAYERS, DIM, HIDDEN),
        "up": normal(LAYERS, DIM, HIDDEN),
        "down": normal(LAYERS, HIDDEN, DIM),
        "norm1": 1 + normal(LAYERS, DIM),
        "norm2": 1 + normal(LAYERS, DIM),
    }
    params = {"embed": normal(VOCAB, DIM), "layers": layers}
    params |= {"norm": 1 + normal(DIM), "head": normal(DIM, VOCAB)}
    tokens = jnp.asarray(rng.integers(0, VOCAB, (3, LENGTH + 1)))
    return params, tx.init(params), tokens[:, :-1], tokens[:, 1:]


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="kv_heads_tiled_instead_of_repeated",
        old="    k, v = jnp.repeat(k, groups, 2), jnp.repeat(v, groups, 2)\n",
        new="    k, v = jnp.tile(k, (1, 1, groups, 1)), jnp.tile(v, (1, 1, groups, 1))\n",
    ),
    Bug(
        name="labels_clipped_to_the_local_vocabulary",
        old="    picked = jnp.take_along_axis(shifted, index[..., None], -1)[..., 0]\n"
        '    return log_z - lax.psum(jnp.where(is_here, picked, 0.0), "model")\n',
        new="    picked = jnp.take_along_axis(shifted, index[..., None], -1)[..., 0]\n"
        '    return log_z - lax.psum(picked, "model")\n',
    ),
)
