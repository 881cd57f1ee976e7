"""Pipeline: each stage scans over its own layers, so any number of stages is the same model."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "stage=4"
tx = optax.chain(optax.clip(0.5), optax.adam(1e-2))


def layer(x, params):
    return x + jnp.tanh(x @ params["kernel"] + params["bias"]), None


def apply_stage(params, x):
    return lax.scan(jax.checkpoint(layer), x, params)[0]


def train_step(params, opt_state, x, y):
    n_stages, stage = lax.axis_size("stage"), lax.axis_index("stage")
    n_micro = x.shape[0]
    is_last = stage == n_stages - 1

    def loss_fn(params):
        def tick(carry, t):
            received, total = carry
            batch = x[jnp.clip(t, 0, n_micro - 1)]
            out = apply_stage(params, jnp.where(stage == 0, batch, received))
            done = t - (n_stages - 1)
            target = y[jnp.clip(done, 0, n_micro - 1)]
            loss = jnp.mean((out - target) ** 2)
            total = total + jnp.where(is_last & (done >= 0), loss, 0.0)
            pairs = [(i, i + 1) for i in range(n_stages - 1)]
            return (lax.ppermute(out, "stage", pairs), total), None

        start = lax.pcast((jnp.zeros_like(x[0]), 0.0), "stage", to="varying")
        (_, total), _ = lax.scan(tick, start, jnp.arange(n_micro + n_stages - 1))
        return lax.psum(total, "stage") / n_micro

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


def step(params, opt_state, x, y):
    state_specs = jax.tree.map(lambda leaf: P("stage") if leaf.ndim else P(), opt_state)
    return jax.shard_map(
        train_step,
        in_specs=(P("stage"), state_specs, P(), P()),
        out_specs=(P("stage"), state_specs, P()),
    )(params, opt_state, x, y)


def reference(params, opt_state, x, y):
    def loss_fn(params):
        return jnp.mean((lax.scan(layer, x, params)[0] - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


def example_args():
    rng = np.random.default_rng(9)
    params = {
        "kernel": jnp.asarray(rng.normal(size=(24, 4, 4)) / 5, jnp.float32),
        "bias": jnp.asarray(rng.normal(size=(24, 4)) / 5, jnp.float32),
    }
    x = jnp.asarray(rng.normal(size=(5, 3, 4)), jnp.float32)
    y = jnp.asarray(rng.normal(size=(5, 3, 4)), jnp.float32)
    return params, tx.init(params), x, y


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="targets_not_delayed",
        old="target = y[jnp.clip(done, 0, n_micro - 1)]",
        new="target = y[jnp.clip(t, 0, n_micro - 1)]",
    ),
    Bug(
        name="loss_counted_while_the_pipeline_fills",
        old="jnp.where(is_last & (done >= 0), loss, 0.0)",
        new="jnp.where(is_last, loss, 0.0)",
    ),
    Bug(
        name="loss_counted_on_every_stage",
        old="jnp.where(is_last & (done >= 0), loss, 0.0)",
        new="jnp.where(done >= 0, loss, 0.0)",
    ),
    Bug(
        name="one_tick_too_few",
        old="jnp.arange(n_micro + n_stages - 1)",
        new="jnp.arange(n_micro + n_stages - 2)",
        needs_reference=True,
    ),
    Bug(
        name="loss_averaged_over_stages",
        old='lax.psum(total, "stage") / n_micro',
        new='lax.pmean(total, "stage") / n_micro',
        causes=("divided_by_n",),
    ),
    Bug(
        name="received_microbatch_used_on_every_stage",
        old="jnp.where(stage == 0, batch, received)",
        new="jnp.where(stage >= 0, batch, received)",
    ),
)
