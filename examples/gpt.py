"""A GPT train step in plain JAX, without a single sharding: a scan over layers, remat, and Adam.

    shardlab autoshard examples/gpt.py:train_step --devices 256 --hardware tpu-v5p

It has 6.6 billion parameters in float32, computes in bfloat16, and reads a million tokens a step.
`train_step_args` are shapes: nothing of this size is ever allocated.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

LAYERS, WIDTH, HEADS, HIDDEN, VOCABULARY = 32, 4096, 32, 16384, 32768
SEQUENCES, TOKENS = 512, 2048
LEARNING_RATE, DECAY_MEAN, DECAY_SQUARE = 3e-4, 0.9, 0.95


def rms_norm(x, scale):
    mean_square = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
    return (x * jax.lax.rsqrt(mean_square + 1e-6).astype(x.dtype)) * scale


def attention(x, layer):
    batch, length, width = x.shape
    heads = (batch, length, HEADS, width // HEADS)
    query, key, value = ((x @ layer[name]).reshape(heads) for name in ("query", "key", "value"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / (width // HEADS) ** 0.5
    causal = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9).astype(jnp.float32)).astype(x.dtype)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
    return mixed.reshape(x.shape) @ layer["out"]


def mlp(x, layer):
    return jax.nn.gelu(x @ layer["up"]) @ layer["down"]


@functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable)
def block(x, layer):
    layer = jax.tree.map(lambda weight: weight.astype(x.dtype), layer)
    x = x + attention(rms_norm(x, layer["norm_attention"]), layer)
    x = x + mlp(rms_norm(x, layer["norm_mlp"]), layer)
    return x, None


def loss(params, tokens):
    x = params["embedding"].astype(jnp.bfloat16)[tokens]
    x, _ = jax.lax.scan(block, x, params["layers"])
    logits = rms_norm(x, params["norm"].astype(x.dtype)) @ params["head"].astype(x.dtype)
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
    targets = jnp.roll(tokens, -1, axis=1)
    return -jnp.mean(jnp.take_along_axis(log_probs, targets[..., None], axis=-1))


def adam(param, gradient, mean, square):
    mean = DECAY_MEAN * mean + (1 - DECAY_MEAN) * gradient
    square = DECAY_SQUARE * square + (1 - DECAY_SQUARE) * gradient**2
    return param - LEARNING_RATE * mean / (jnp.sqrt(square) + 1e-8), mean, square


def train_step(state, tokens):
    value, gradients = jax.value_and_grad(loss)(state["params"], tokens)
    updated = jax.tree.map(adam, state["params"], gradients, state["mean"], state["square"])
    outer, inner = jax.tree.structure(gradients), jax.tree.structure((0, 0, 0))
    params, mean, square = jax.tree.transpose(outer, inner, updated)
    return {"params": params, "mean": mean, "square": square}, value


def train_step_args():
    def weights(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    square = weights(LAYERS, WIDTH, WIDTH)
    params = {
        "embedding": weights(VOCABULARY, WIDTH),
        "head": weights(WIDTH, VOCABULARY),
        "norm": weights(WIDTH),
        "layers": {
            "query": square,
            "key": square,
            "value": square,
            "out": square,
            "up": weights(LAYERS, WIDTH, HIDDEN),
            "down": weights(LAYERS, HIDDEN, WIDTH),
            "norm_attention": weights(LAYERS, WIDTH),
            "norm_mlp": weights(LAYERS, WIDTH),
        },
    }
    state = {"params": params, "mean": params, "square": params}
    return state, jax.ShapeDtypeStruct((SEQUENCES, TOKENS), jnp.int32)
