"""Ring attention: a train step of a block without a causal mask, batch over `data`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "data=2,seq=4"
tx = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2))


def ring(q, k, v):
    n = lax.axis_size("seq")
    pairs = [(i, (i + 1) % n) for i in range(n)]
    acc, total = jnp.zeros_like(q), jnp.zeros_like(q[..., :1])
    largest = jnp.full_like(q[..., :1], -jnp.inf)
    for i in range(n):
        scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
        new_largest = jnp.maximum(largest, scores.max(-1, keepdims=True))
        powers, rescale = jnp.exp(scores - new_largest), jnp.exp(largest - new_largest)
        acc, total = acc * rescale + powers @ v, total * rescale + powers.sum(-1, keepdims=True)
        largest = new_largest
        if i < n - 1:
            k, v = lax.ppermute((k, v), "seq", pairs)
    return acc / total


def plain_attention(q, k, v):
    return jax.nn.softmax(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5) @ v


def loss_fn(params, batch, attention):
    x = batch["x"]
    q, k, v = (x @ params[name] for name in "qkv")
    out = x + attention(q, k, v) @ params["o"]
    return jnp.mean((out - batch["y"]) ** 2)


def step(params, opt_state, batch):
    def train_step(params, opt_state, batch):
        def mean_loss(params):
            return lax.pmean(loss_fn(params, batch, jax.checkpoint(ring)), ("data", "seq"))

        loss, grads = jax.value_and_grad(mean_loss)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    return jax.shard_map(
        train_step, in_specs=(P(), P(), P("data", "seq")), out_specs=(P(), P(), P())
    )(params, opt_state, batch)


def reference(params, opt_state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch, plain_attention)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


def example_args():
    rng = np.random.default_rng(13)
    params = {name: jnp.asarray(rng.normal(size=(6, 6)), jnp.float32) for name in "qkvo"}
    batch = {name: jnp.asarray(rng.normal(size=(12, 24, 6)), jnp.float32) for name in "xy"}
    return params, tx.init(params), batch


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="accumulator_not_rescaled",
        old="acc * rescale + powers @ v",
        new="acc + powers @ v",
    ),
    Bug(
        name="values_not_rotated",
        old='k, v = lax.ppermute((k, v), "seq", pairs)',
        new='k = lax.ppermute(k, "seq", pairs)',
    ),
    Bug(
        name="loss_summed_over_the_sequence",
        old='jax.checkpoint(ring)), ("data", "seq"))',
        new='jax.checkpoint(ring)) * lax.axis_size("seq"), ("data", "seq"))',
        causes=("factor_of_n",),
    ),
    Bug(
        name="attention_to_the_local_block",
        old="    for i in range(n):\n",
        new="    for i in range(1):\n",
    ),
)
