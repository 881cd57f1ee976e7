"""Data parallel: gradient accumulation by a scan over microbatches, and a masked token loss."""

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
tx = optax.sgd(0.1, momentum=0.9)


def token_losses(params, tokens, targets):
    hidden = jnp.tanh(params["embed"][tokens])
    logits = hidden @ params["head"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets)


def microbatch_loss(params, batch, n_tokens):
    losses = token_losses(params, batch["tokens"], batch["targets"])
    return (losses * batch["mask"]).sum() / n_tokens


def accumulate(params, batch):
    n_tokens = lax.psum(batch["mask"].sum(), "data")

    def split(x):
        return x.reshape(N_MICROBATCHES, -1, *x.shape[1:])

    def one_microbatch(carry, microbatch):
        total, grads = carry
        loss, new = jax.value_and_grad(microbatch_loss)(params, microbatch, n_tokens)
        return (total + loss, jax.tree.map(jnp.add, grads, new)), None

    zeros = jax.tree.map(jnp.zeros_like, params)
    (loss, grads), _ = lax.scan(one_microbatch, (0.0, zeros), jax.tree.map(split, batch))
    return lax.psum(loss, "data"), lax.psum(grads, "data")


def update(params, opt_state, batch):
    loss, grads = accumulate(params, batch)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def step(params, opt_state, batch):
    return jax.shard_map(
        update, in_specs=(P(), P(), P("data")), out_specs=(P(), P(), P()), check_vma=False
    )(params, opt_state, batch)


def reference(params, opt_state, batch):
    n_tokens = batch["mask"].sum()
    loss, grads = jax.value_and_grad(microbatch_loss)(params, batch, n_tokens)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def example_args():
    rng = np.random.default_rng(1)
    params = {
        "embed": jnp.asarray(rng.normal(size=(20, 8)), jnp.float32),
        "head": jnp.asarray(rng.normal(size=(8, 20)) / 3, jnp.float32),
    }
    batch = {
        "tokens": jnp.asarray(rng.integers(0, 20, (48, 6))),
        "targets": jnp.asarray(rng.integers(0, 20, (48, 6))),
        "mask": jnp.asarray(rng.random((48, 6)) < np.linspace(0.2, 1, 48)[:, None], jnp.float32),
    }
    opt_state = jax.tree.map(lambda x: x + 0.01, tx.init(params))
    return params, opt_state, batch


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="averaged_by_device",
        old='    n_tokens = lax.psum(batch["mask"].sum(), "data")\n',
        new='    n_tokens = batch["mask"].sum() * lax.axis_size("data")\n',
        causes=("mean_of_means",),
    ),
    Bug(
        name="averaged_again",
        old='return lax.psum(loss, "data"), lax.psum(grads, "data")',
        new='return lax.psum(loss, "data"), lax.pmean(grads, "data")',
        causes=("gradient_scaled_by_n", "divided_by_n"),
    ),
    Bug(
        name="summed_in_every_microbatch_and_after",
        old="        return (total + loss, jax.tree.map(jnp.add, grads, new)), None",
        new='        new = lax.psum(new, "data")\n'
        "        return (total + loss, jax.tree.map(jnp.add, grads, new)), None",
        causes=("gradient_scaled_by_n", "factor_of_n"),
    ),
    Bug(
        name="last_microbatch_only",
        old="jax.tree.map(jnp.add, grads, new)",
        new="new",
        needs_reference=True,
    ),
    Bug(
        name="loss_not_summed",
        old='return lax.psum(loss, "data"), lax.psum(grads, "data")',
        new='return loss, lax.psum(grads, "data")',
        code="hazard.replicas_differ",
        causes=("missing_psum",),
    ),
)
