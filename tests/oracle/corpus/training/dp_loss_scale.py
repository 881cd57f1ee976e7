"""Data parallel: bfloat16 compute, a loss scale, an exponential average of the weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "data=4"
SCALE = 64.0
tx = optax.chain(optax.add_decayed_weights(0.01), optax.sgd(0.2))


def forward(params, x):
    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
    hidden = jax.nn.relu(x.astype(jnp.bfloat16) @ half["w1"] + half["b1"])
    return (hidden @ half["w2"]).astype(jnp.float32)


def scaled_loss(params, batch):
    return SCALE * jnp.mean((forward(params, batch["x"]) - batch["y"]) ** 2)


def train_step(params, ema, opt_state, batch):
    loss, grads = jax.value_and_grad(jax.remat(scaled_loss))(params, batch)
    grads = jax.tree.map(lambda g: lax.pmean(g, "data") / SCALE, grads)
    is_finite = jnp.all(jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
    updates, opt_state = tx.update(grads, opt_state, params)
    new = optax.apply_updates(params, updates)
    params = jax.tree.map(lambda n, p: jnp.where(is_finite, n, p), new, params)
    ema = jax.tree.map(lambda e, p: 0.99 * e + 0.01 * p, ema, params)
    n_rows = lax.psum(batch["x"].shape[0], "data")
    return params, ema, {"loss": lax.pmean(loss, "data") / SCALE, "rows": jnp.asarray(n_rows)}


def step(params, ema, opt_state, batch):
    return jax.shard_map(
        train_step,
        in_specs=(P(), P(), P(), P("data")),
        out_specs=(P(), P(), P()),
        check_vma=False,
    )(params, ema, opt_state, batch)


def reference(params, ema, opt_state, batch):
    loss, grads = jax.value_and_grad(scaled_loss)(params, batch)
    grads = jax.tree.map(lambda g: g / SCALE, grads)
    updates, opt_state = tx.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    ema = jax.tree.map(lambda e, p: 0.99 * e + 0.01 * p, ema, params)
    return params, ema, {"loss": loss / SCALE, "rows": jnp.asarray(batch["x"].shape[0])}


def example_args():
    rng = np.random.default_rng(20)
    params = {
        "w1": jnp.asarray(rng.normal(size=(6, 12)) / 2, jnp.float32),
        "b1": jnp.asarray(rng.normal(size=12), jnp.float32),
        "w2": jnp.asarray(rng.normal(size=(12, 2)) / 3, jnp.float32),
    }
    batch = {
        "x": jnp.asarray(rng.normal(size=(48, 6)), jnp.float32),
        "y": jnp.asarray(rng.normal(size=(48, 2)), jnp.float32),
    }
    ema = jax.tree.map(lambda p: 0.9 * p, params)
    return params, ema, tx.init(params), batch


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="gradients_summed",
        old='lambda g: lax.pmean(g, "data") / SCALE, grads)',
        new='lambda g: lax.psum(g, "data") / SCALE, grads)',
        causes=("gradient_scaled_by_n", "factor_of_n"),
    ),
    Bug(
        name="gradients_of_one_device",
        old='lambda g: lax.pmean(g, "data") / SCALE, grads)',
        new="lambda g: g / SCALE, grads)",
        code="hazard.replicas_differ",
        causes=("missing_pmean",),
    ),
    Bug(
        name="rows_of_one_device",
        old='n_rows = lax.psum(batch["x"].shape[0], "data")',
        new='n_rows = batch["x"].shape[0]',
        causes=("divided_by_n",),
    ),
    Bug(
        name="loss_scale_not_removed",
        old='lax.pmean(loss, "data") / SCALE',
        new='lax.psum(loss, "data") / SCALE',
        causes=("factor_of_n",),
    ),
)
