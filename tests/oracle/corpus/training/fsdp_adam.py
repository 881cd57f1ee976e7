"""FSDP: parameters, gradients and Adam's states are sharded; weights are gathered when used."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "fsdp=4"
tx = optax.adam(1e-2)


def global_norm(shards):
    squares = sum(jnp.sum(g**2) for g in jax.tree.leaves(shards))
    return jnp.sqrt(lax.psum(squares, "fsdp"))


def gather(shards):
    return jax.tree.map(lambda w: lax.all_gather(w, "fsdp", axis=0, tiled=True), shards)


def scatter_mean(grads):
    def reduce(g):
        shard = lax.psum_scatter(g, "fsdp", scatter_dimension=0, tiled=True)
        return shard / lax.axis_size("fsdp")

    return jax.tree.map(reduce, grads)


def loss_fn(params, batch):
    hidden = jax.nn.relu(batch["x"] @ params["w1"])
    return jnp.mean((hidden @ params["w2"] - batch["y"]) ** 2)


def train_step(shards, opt_state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(gather(shards), batch)
    grads = scatter_mean(grads)
    norm = global_norm(grads)
    grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 0.5 / norm), grads)
    updates, opt_state = tx.update(grads, opt_state)
    metrics = {"loss": lax.pmean(loss, "fsdp"), "norm": norm}
    return optax.apply_updates(shards, updates), opt_state, metrics


def step(params, opt_state, batch):
    state_specs = jax.tree.map(lambda x: P("fsdp") if x.ndim else P(), opt_state)
    return jax.shard_map(
        train_step,
        in_specs=(P("fsdp"), state_specs, P("fsdp")),
        out_specs=(P("fsdp"), state_specs, P()),
        check_vma=False,
    )(params, opt_state, batch)


def reference(params, opt_state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    norm = optax.global_norm(grads)
    grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 0.5 / norm), grads)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, {"loss": loss, "norm": norm}


def example_args():
    rng = np.random.default_rng(6)
    params = {
        "w1": jnp.asarray(rng.normal(size=(24, 48)) / 3, jnp.float32),
        "w2": jnp.asarray(rng.normal(size=(48, 5)) / 3, jnp.float32),
    }
    batch = {
        "x": jnp.asarray(rng.normal(size=(48, 24)), jnp.float32),
        "y": jnp.asarray(rng.normal(size=(48, 5)), jnp.float32),
    }
    return params, tx.init(params), batch


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="norm_of_the_local_shard",
        old='jnp.sqrt(lax.psum(squares, "fsdp"))',
        new="jnp.sqrt(squares)",
        code="hazard.replicas_differ",
    ),
    Bug(
        name="norms_summed_instead_of_squares",
        old='jnp.sqrt(lax.psum(squares, "fsdp"))',
        new='lax.psum(jnp.sqrt(squares), "fsdp")',
    ),
    Bug(
        name="gradients_scattered_as_a_sum",
        old='return shard / lax.axis_size("fsdp")',
        new="return shard",
        causes=("gradient_scaled_by_n", "factor_of_n"),
    ),
    Bug(
        name="gradients_sliced_instead_of_reduced",
        old='        shard = lax.psum_scatter(g, "fsdp", scatter_dimension=0, tiled=True)\n'
        '        return shard / lax.axis_size("fsdp")\n',
        new='        n = g.shape[0] // lax.axis_size("fsdp")\n'
        '        return lax.dynamic_slice_in_dim(g, lax.axis_index("fsdp") * n, n)\n',
    ),
    Bug(
        name="divided_by_a_constant",
        old='return shard / lax.axis_size("fsdp")',
        new="return shard / 8",
        causes=("gradient_scaled_by_n", "factor_of_n"),
    ),
)
