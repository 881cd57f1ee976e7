"""Clipping by global norm where some parameters are sharded over `model` and others replicated."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "data=2,model=4"
MAX_NORM = 0.2
SPECS = {"embed": P(), "up": P(None, "model"), "down": P("model", None), "scale": P()}
tx = optax.sgd(0.1, momentum=0.9)


def forward(params, x):
    h = (x @ params["embed"]) * params["scale"]
    return lax.psum(jax.nn.silu(h @ params["up"]) @ params["down"], "model")


def squares(grads, names):
    return sum(jnp.sum(jnp.square(grads[name])) for name in names)


def global_norm(grads):
    sharded = lax.psum(squares(grads, ("up", "down")), "model")
    replicated = squares(grads, ("embed", "scale"))
    return jnp.sqrt(sharded + replicated)


def train_step(params, opt_state, x, y):
    def loss_fn(params):
        return lax.pmean(jnp.mean((forward(params, x) - y) ** 2), "data")

    loss, grads = jax.value_and_grad(loss_fn)(params)
    norm = global_norm(grads)
    factor = jnp.minimum(1.0, MAX_NORM / norm)
    grads = jax.tree.map(lambda g: factor * g, grads)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, {"loss": loss, "norm": norm}


@functools.partial(jax.jit, donate_argnums=(0, 1))
def step(params, opt_state, x, y):
    opt_specs = (opt_state[0]._replace(trace=SPECS), *opt_state[1:])
    return jax.shard_map(
        train_step,
        in_specs=(SPECS, opt_specs, P("data"), P("data")),
        out_specs=(SPECS, opt_specs, P()),
    )(params, opt_state, x, y)


def reference(params, opt_state, x, y):
    def loss_fn(params):
        h = (x @ params["embed"]) * params["scale"]
        out = jax.nn.silu(h @ params["up"]) @ params["down"]
        return jnp.mean((out - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    norm = optax.global_norm(grads)
    grads = jax.tree.map(lambda g: jnp.minimum(1.0, MAX_NORM / norm) * g, grads)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, {"loss": loss, "norm": norm}


def example_args():
    rng = np.random.default_rng(52)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / 2, jnp.float32)

    params = {"embed": normal(5, 8), "up": normal(8, 24), "down": normal(24, 3), "scale": normal(8)}
    return params, tx.init(params), 2 * normal(24, 5), normal(24, 3)


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="replicated_parameters_counted_n_times_in_the_norm",
        old='    sharded = lax.psum(squares(grads, ("up", "down")), "model")\n'
        '    replicated = squares(grads, ("embed", "scale"))\n'
        "    return jnp.sqrt(sharded + replicated)\n",
        new='    return jnp.sqrt(lax.psum(squares(grads, grads), "model"))\n',
        causes=("bias_n_times",),
    ),
    Bug(
        name="norm_summed_over_data_too",
        old='lax.psum(squares(grads, ("up", "down")), "model")',
        new='lax.psum(squares(grads, ("up", "down")), ("data", "model"))',
        code="jax.rejected",  # the gradients are the same along 'data' already
        causes=("partly_varying",),
    ),
    Bug(
        name="norms_of_the_shards_summed",
        old='    sharded = lax.psum(squares(grads, ("up", "down")), "model")\n',
        new='    sharded = lax.psum(jnp.sqrt(squares(grads, ("up", "down"))), "model") ** 2\n',
    ),
)
