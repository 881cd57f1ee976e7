"""Data parallel: batch statistics over all devices, dropout, and running averages."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "data=4"
tx = optax.adam(1e-2)


def batch_norm(x, running, axis_name=None):
    mean, square = x.mean(0), (x**2).mean(0)
    if axis_name:
        mean, square = lax.pmean((mean, square), axis_name)
    variance = square - mean**2
    running = jax.tree.map(
        lambda old, new: 0.9 * old + 0.1 * new, running, {"mean": mean, "var": variance}
    )
    return (x - mean) / jnp.sqrt(variance + 1e-5), running


def loss_fn(params, running, batch, axis_name=None):
    hidden = batch["x"] @ params["w1"]
    hidden, running = batch_norm(hidden, running, axis_name)
    hidden = jax.nn.relu(hidden) * batch["keep"] / 0.8
    prediction = hidden @ params["w2"]
    return jnp.mean((prediction - batch["y"]) ** 2), running


def step(params, running, opt_state, batch):
    def train_step(params, running, opt_state, batch):
        def mean_loss(params):
            loss, new_running = loss_fn(params, running, batch, "data")
            return lax.pmean(loss, "data"), new_running

        (loss, new_running), grads = jax.value_and_grad(mean_loss, has_aux=True)(params)
        updates, new_opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), new_running, new_opt_state, loss

    specs = (P(), P(), P(), P("data"))
    return jax.shard_map(train_step, in_specs=specs, out_specs=P())(
        params, running, opt_state, batch
    )


def reference(params, running, opt_state, batch):
    grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
    (loss, new_running), grads = grad_fn(params, running, batch)
    updates, new_opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), new_running, new_opt_state, loss


def example_args():
    rng = np.random.default_rng(2)
    params = {
        "w1": jnp.asarray(rng.normal(size=(6, 10)), jnp.float32),
        "w2": jnp.asarray(rng.normal(size=(10, 3)), jnp.float32),
    }
    running = {"mean": jnp.zeros(10), "var": jnp.ones(10)}
    batch = {
        "x": jnp.asarray(rng.normal(size=(48, 6)) + np.linspace(-1, 2, 48)[:, None], jnp.float32),
        "y": jnp.asarray(rng.normal(size=(48, 3)), jnp.float32),
        "keep": jnp.asarray(rng.random((48, 10)) < 0.8, jnp.float32),
    }
    return params, running, tx.init(params), batch


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="mean_of_local_variances",
        old="    mean, square = x.mean(0), (x**2).mean(0)\n    if axis_name:\n"
        "        mean, square = lax.pmean((mean, square), axis_name)\n"
        "    variance = square - mean**2\n",
        new="    mean, variance = x.mean(0), x.var(0)\n    if axis_name:\n"
        "        mean, variance = lax.pmean((mean, variance), axis_name)\n",
    ),
    Bug(
        name="dropout_with_the_same_key",
        old='hidden = jax.nn.relu(hidden) * batch["keep"] / 0.8',
        new="keep = jax.random.bernoulli(jax.random.key(0), 0.8, hidden.shape)\n"
        "    hidden = jax.nn.relu(hidden) * keep / 0.8",
        causes=("same_random_numbers",),
    ),
    Bug(
        name="gradient_of_the_local_loss",
        old='return lax.pmean(loss, "data"), new_running',
        new="return loss, new_running",
        code="jax.rejected",
        causes=("replication",),
    ),
    Bug(
        name="loss_summed",
        old='return lax.pmean(loss, "data"), new_running',
        new='return lax.psum(loss, "data"), new_running',
        causes=("factor_of_n",),
    ),
)
