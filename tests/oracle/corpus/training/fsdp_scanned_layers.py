"""FSDP: scanned, rematerialized layers in bfloat16; JAX transposes each gather to a scatter."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "data=4"
tx = optax.chain(optax.add_decayed_weights(1e-2), optax.sgd(0.1, momentum=0.9))


def layer(x, shard):
    kernel = lax.all_gather(shard.astype(jnp.bfloat16), "data", axis=0, tiled=True)
    return x + jnp.tanh(x @ kernel), None


def step(params, opt_state, batch):
    def loss_fn(shards, batch):
        x = batch["x"].astype(jnp.bfloat16)
        x, _ = lax.scan(jax.checkpoint(layer), x, shards)
        loss = jnp.mean((x.astype(jnp.float32) - batch["y"]) ** 2)
        return lax.pmean(loss, "data")

    def train_step(shards, opt_state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(shards, batch)
        updates, opt_state = tx.update(grads, opt_state, shards)
        return optax.apply_updates(shards, updates), opt_state, loss

    sharded = P(None, "data")
    return jax.shard_map(
        train_step,
        in_specs=(sharded, sharded, P("data")),
        out_specs=(sharded, sharded, P()),
    )(params, opt_state, batch)


def reference(params, opt_state, batch):
    def plain_layer(x, kernel):
        return x + jnp.tanh(x @ kernel.astype(jnp.bfloat16)), None

    def loss_fn(params):
        x, _ = lax.scan(plain_layer, batch["x"].astype(jnp.bfloat16), params)
        return jnp.mean((x.astype(jnp.float32) - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def example_args():
    rng = np.random.default_rng(7)
    params = jnp.asarray(rng.normal(size=(3, 24, 24)) / 5, jnp.float32)
    batch = {
        "x": jnp.asarray(rng.normal(size=(48, 24)), jnp.float32),
        "y": jnp.asarray(rng.normal(size=(48, 24)), jnp.float32),
    }
    return params, tx.init(params), batch


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="gathered_on_the_wrong_dimension",
        old='"data", axis=0, tiled=True)\n    return x + jnp.tanh(x @ kernel), None',
        new='"data", axis=0, tiled=False)\n'
        "    kernel = jnp.moveaxis(kernel, 0, 1).reshape(-1, kernel.shape[-1])\n"
        "    return x + jnp.tanh(x @ kernel), None",
    ),
    Bug(
        name="loss_of_the_local_batch_summed",
        old='return lax.pmean(loss, "data")',
        new='return lax.psum(loss, "data")',
        causes=("factor_of_n",),
    ),
    Bug(
        name="gradients_averaged_after_the_loss_was",
        old="        updates, opt_state = tx.update(grads, opt_state, shards)",
        new='        grads = grads / lax.axis_size("data")\n'
        "        updates, opt_state = tx.update(grads, opt_state, shards)",
        causes=("gradient_scaled_by_n", "divided_by_n"),
    ),
)
