"""FSDP within groups and data parallel between them: gradients are reduced over both axes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "replica=2,fsdp=4"
tx = optax.sgd(0.3, momentum=0.8)


def loss_fn(params, batch):
    hidden = jnp.tanh(batch["x"] @ params["w"])
    return jnp.sum((hidden @ params["v"] - batch["y"]) ** 2)


def train_step(shards, opt_state, batch):
    n_rows = lax.psum(batch["x"].shape[0], ("replica", "fsdp"))
    params = jax.tree.map(lambda p: lax.all_gather(p, "fsdp", tiled=True), shards)
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)

    def reduce(g):
        g = lax.psum_scatter(g, "fsdp", tiled=True)
        return lax.psum(g, "replica") / n_rows

    updates, opt_state = tx.update(jax.tree.map(reduce, grads), opt_state)
    loss = lax.psum(loss, ("replica", "fsdp")) / n_rows
    return optax.apply_updates(shards, updates), opt_state, loss


def step(params, opt_state, batch):
    spec = P(("replica", "fsdp"))
    return jax.shard_map(
        train_step,
        in_specs=(P("fsdp"), P("fsdp"), spec),
        out_specs=(P("fsdp"), P("fsdp"), P()),
        check_vma=False,
    )(params, opt_state, batch)


def reference(params, opt_state, batch):
    n_rows = batch["x"].shape[0]
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    grads = jax.tree.map(lambda g: g / n_rows, grads)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss / n_rows


def example_args():
    rng = np.random.default_rng(23)
    params = {
        "w": jnp.asarray(rng.normal(size=(24, 12)) / 4, jnp.float32),
        "v": jnp.asarray(rng.normal(size=(12, 3)) / 4, jnp.float32),
    }
    batch = {
        "x": jnp.asarray(rng.normal(size=(48, 24)), jnp.float32),
        "y": jnp.asarray(rng.normal(size=(48, 3)), jnp.float32),
    }
    return params, tx.init(params), batch


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="groups_not_reduced",
        old='return lax.psum(g, "replica") / n_rows',
        new="return g / n_rows",
        code="hazard.replicas_differ",
        causes=("missing_psum",),
    ),
    Bug(
        name="groups_averaged",
        old='return lax.psum(g, "replica") / n_rows',
        new='return lax.pmean(g, "replica") / n_rows',
        causes=("gradient_scaled_by_n", "divided_by_n"),
    ),
    Bug(
        name="divided_by_the_local_rows",
        old='n_rows = lax.psum(batch["x"].shape[0], ("replica", "fsdp"))',
        new='n_rows = batch["x"].shape[0]',
        causes=("factor_of_n", "gradient_scaled_by_n"),
    ),
    Bug(
        name="rows_of_one_group",
        old='n_rows = lax.psum(batch["x"].shape[0], ("replica", "fsdp"))',
        new='n_rows = lax.psum(batch["x"].shape[0], "fsdp")',
        causes=("factor_of_n", "gradient_scaled_by_n"),
    ),
)
