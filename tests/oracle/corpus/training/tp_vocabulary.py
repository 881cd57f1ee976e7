"""Tensor parallel: an embedding and a cross entropy whose vocabulary is sharded."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "model=4"
tx = optax.sgd(0.5)
SPECS = {"embed": P("model"), "head": P(None, "model")}


def embed(table, tokens):
    first = lax.axis_index("model") * table.shape[0]
    local = tokens - first
    is_local = (local >= 0) & (local < table.shape[0])
    rows = jnp.where(is_local[..., None], table[jnp.clip(local, 0, table.shape[0] - 1)], 0.0)
    return lax.psum(rows, "model")


def cross_entropy(logits, targets):
    largest = lax.pmax(lax.stop_gradient(logits.max(-1)), "model")
    powers = jnp.exp(logits - largest[..., None])
    log_total = jnp.log(lax.psum(powers.sum(-1), "model")) + largest
    local = targets - lax.axis_index("model") * logits.shape[-1]
    is_local = (local >= 0) & (local < logits.shape[-1])
    index = jnp.clip(local, 0, logits.shape[-1] - 1)[..., None]
    target_logit = jnp.take_along_axis(logits, index, -1)[..., 0]
    target_logit = lax.psum(jnp.where(is_local, target_logit, 0.0), "model")
    return log_total - target_logit


def step(params, opt_state, batch):
    @jax.shard_map(in_specs=(SPECS, P()), out_specs=P())
    def losses(params, batch):
        hidden = jnp.tanh(embed(params["embed"], batch["tokens"]))
        return cross_entropy(hidden @ params["head"], batch["targets"])

    loss, grads = jax.value_and_grad(lambda params: losses(params, batch).mean())(params)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), loss


def reference(params, opt_state, batch):
    def loss_fn(params):
        hidden = jnp.tanh(params["embed"][batch["tokens"]])
        logits = hidden @ params["head"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), loss


def example_args():
    rng = np.random.default_rng(5)
    params = {
        "embed": jnp.asarray(rng.normal(size=(24, 6)), jnp.float32),
        "head": jnp.asarray(rng.normal(size=(6, 24)), jnp.float32),
    }
    batch = {
        "tokens": jnp.asarray(rng.integers(0, 24, (7, 5))),
        "targets": jnp.asarray(rng.integers(0, 24, (7, 5))),
    }
    return params, tx.init(params), batch


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="embedding_without_offset",
        old='    first = lax.axis_index("model") * table.shape[0]\n    local = tokens - first\n',
        new="    local = tokens\n",
        causes=("only_shard_0",),
        code="hazard.mesh_dependent",
    ),
    Bug(
        name="softmax_over_the_local_vocabulary",
        old='jnp.log(lax.psum(powers.sum(-1), "model"))',
        new='lax.pmean(jnp.log(powers.sum(-1)), "model")',
        causes=("local_reduction",),
    ),
    Bug(
        name="targets_outside_not_masked",
        old='lax.psum(jnp.where(is_local, target_logit, 0.0), "model")',
        new='lax.psum(target_logit, "model")',
    ),
    Bug(
        name="largest_logit_added_before_the_sum",
        old='    log_total = jnp.log(lax.psum(powers.sum(-1), "model")) + largest\n',
        new='    log_total = lax.psum(jnp.log(powers.sum(-1)), "model") + largest\n',
    ),
)
