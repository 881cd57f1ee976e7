"""Data parallel: bfloat16, dropout keys per example, accumulation by scan, jit shardings."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "data=4"
N_MICROBATCHES = 2
RATE = 0.25
tx = optax.chain(optax.trace(decay=0.9, nesterov=True), optax.scale(-0.1))


def dropout(x, key, first_example):
    """Drop units of each example by the example's own key, so that the mesh does not matter."""
    ids = first_example + jnp.arange(x.shape[0])
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, ids)
    keep = jax.vmap(lambda k: jax.random.bernoulli(k, 1 - RATE, x.shape[1:]))(keys)
    return jnp.where(keep, x / (1 - RATE), 0)


def loss_fn(params, batch, key, first_example):
    compute = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
    h = jax.nn.relu(batch["x"].astype(jnp.bfloat16) @ compute["w1"] + compute["b1"])
    h = dropout(h, key, first_example)
    prediction = (h @ compute["w2"]).astype(jnp.float32)
    return jnp.mean((prediction - batch["y"]) ** 2)


def device_grads(params, batch, key):
    local_size = batch["x"].shape[0]
    first_example = lax.axis_index("data") * local_size
    size = local_size // N_MICROBATCHES

    def body(carry, i):
        loss_sum, grad_sum = carry
        microbatch = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, i * size, size), batch)
        loss, grads = jax.value_and_grad(loss_fn)(params, microbatch, key, first_example + i * size)
        return (loss_sum + loss, jax.tree.map(jnp.add, grad_sum, grads)), None

    init = (jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
    (loss, grads), _ = lax.scan(body, init, jnp.arange(N_MICROBATCHES))
    loss, grads = jax.tree.map(lambda a: a / N_MICROBATCHES, (loss, grads))
    return lax.pmean(loss, "data"), lax.pmean(grads, "data")


def train_step(params, opt_state, batch, key):
    loss, grads = jax.shard_map(
        device_grads, in_specs=(P(), P("data"), P()), out_specs=P(), check_vma=False
    )(params, batch, key)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


step = jax.jit(train_step, in_shardings=(P(), P(), P("data"), P()), out_shardings=P())


def reference(params, opt_state, batch, key):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch, key, 0)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def example_args():
    rng = np.random.default_rng(32)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / 2, jnp.float32)

    params = {"w1": normal(6, 12), "b1": normal(12), "w2": normal(12, 3)}
    batch = {"x": 2 * normal(48, 6), "y": normal(48, 3)}
    return params, tx.init(params), batch, jax.random.key(7)


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="dropout_ids_of_the_local_batch",
        old='    first_example = lax.axis_index("data") * local_size\n',
        new="    first_example = 0\n",
        causes=("same_random_numbers", "only_shard_0"),
    ),
    Bug(
        name="accumulated_gradients_not_averaged",
        old="    loss, grads = jax.tree.map(lambda a: a / N_MICROBATCHES, (loss, grads))\n",
        new="    loss = loss / N_MICROBATCHES\n",
        needs_reference=True,
    ),
)
