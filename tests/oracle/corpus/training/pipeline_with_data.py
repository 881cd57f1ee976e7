"""Pipeline over `stage`, data parallel over `data`; embedding and head are on every stage."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "data=2,stage=4"
tx = optax.sgd(0.1)
SPECS = {"embed": P(), "layers": P("stage"), "head": P()}


def layer(x, kernel):
    return x + jnp.tanh(x @ kernel), None


def token_loss(params, x, targets):
    return optax.softmax_cross_entropy_with_integer_labels(x @ params["head"], targets).mean()


def pipeline_loss(params, tokens, targets):
    n_stages, stage = lax.axis_size("stage"), lax.axis_index("stage")
    n_micro = tokens.shape[0]
    pairs = [(i, (i + 1) % n_stages) for i in range(n_stages)]
    is_first, is_last = stage == 0, stage == n_stages - 1

    def tick(state, t):
        entering = params["embed"][tokens[jnp.clip(t, 0, n_micro - 1)]]
        x = jnp.where(is_first, entering, state)
        x, _ = lax.scan(jax.checkpoint(layer), x, params["layers"])
        done = jnp.clip(t - n_stages + 1, 0, n_micro - 1)
        loss = token_loss(params, x, targets[done])
        is_valid = is_last & (t >= n_stages - 1)
        return lax.ppermute(x, "stage", pairs), jnp.where(is_valid, loss, 0.0)

    start = jnp.zeros((*tokens.shape[1:], params["embed"].shape[1]))
    start = lax.pcast(start, ("data", "stage"), to="varying")
    _, losses = lax.scan(tick, start, jnp.arange(n_micro + n_stages - 1))
    return lax.pmean(lax.psum(losses.sum() / n_micro, "stage"), "data")


def step(params, opt_state, tokens, targets):
    def train_step(params, opt_state, tokens, targets):
        loss, grads = jax.value_and_grad(pipeline_loss)(params, tokens, targets)
        updates, _ = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), loss

    data = P(None, "data")
    return jax.shard_map(train_step, in_specs=(SPECS, P(), data, data), out_specs=(SPECS, P()))(
        params, opt_state, tokens, targets
    )


def reference(params, opt_state, tokens, targets):
    def loss_fn(params):
        x, _ = lax.scan(layer, params["embed"][tokens], params["layers"])
        return token_loss(params, x, targets)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, _ = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), loss


def example_args():
    rng = np.random.default_rng(24)
    params = {
        "embed": jnp.asarray(rng.normal(size=(9, 4)), jnp.float32),
        "layers": jnp.asarray(rng.normal(size=(12, 4, 4)) / 3, jnp.float32),
        "head": jnp.asarray(rng.normal(size=(4, 9)), jnp.float32),
    }
    tokens = jnp.asarray(rng.integers(0, 9, (3, 12)))
    targets = jnp.asarray(rng.integers(0, 9, (3, 12)))
    return params, tx.init(params), tokens, targets


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="every_stage_reads_tokens",
        old="is_first, is_last = stage == 0, stage == n_stages - 1",
        new="is_first, is_last = stage % 2 == 0, stage == n_stages - 1",
    ),
    Bug(
        name="losses_averaged_over_stages",
        old='lax.psum(losses.sum() / n_micro, "stage")',
        new='lax.pmean(losses.sum() / n_micro, "stage")',
        causes=("divided_by_n",),
    ),
    Bug(
        name="loss_of_the_first_stage",
        old="is_valid = is_last & (t >= n_stages - 1)",
        new="is_valid = is_first & (t >= n_stages - 1)",
    ),
    Bug(
        name="targets_one_microbatch_late",
        old="done = jnp.clip(t - n_stages + 1, 0, n_micro - 1)",
        new="done = jnp.clip(t - n_stages, 0, n_micro - 1)",
        needs_reference=True,
    ),
)
