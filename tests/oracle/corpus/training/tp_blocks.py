"""Tensor parallel: a stack of residual MLP blocks, scanned and rematerialized, with momentum."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "model=4"
tx = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9))
SPECS = {"up": P(None, None, "model"), "down": P(None, "model"), "bias": P()}


def norm(x):
    return x * lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)


def block(x, layer):
    hidden = jax.nn.silu(norm(x) @ layer["up"])
    delta = lax.psum(hidden @ layer["down"], "model")
    return x + delta + layer["bias"], None


@functools.partial(jax.shard_map, in_specs=(SPECS, P()), out_specs=P())
def forward(params, x):
    return lax.scan(jax.checkpoint(block), x, params)[0]


def loss_fn(params, batch):
    prediction = forward(params, batch["x"])
    return jnp.mean((prediction - batch["y"]) ** 2)


def step(params, opt_state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def reference(params, opt_state, batch):
    def plain_block(x, layer):
        hidden = jax.nn.silu(norm(x) @ layer["up"])
        return x + hidden @ layer["down"] + layer["bias"], None

    def plain_loss(params):
        return jnp.mean((lax.scan(plain_block, batch["x"], params)[0] - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(plain_loss)(params)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def example_args():
    rng = np.random.default_rng(3)
    params = {
        "up": jnp.asarray(rng.normal(size=(3, 6, 24)) / 2, jnp.float32),
        "down": jnp.asarray(rng.normal(size=(3, 24, 6)) / 4, jnp.float32),
        "bias": jnp.asarray(rng.normal(size=(3, 6)), jnp.float32),
    }
    batch = {
        "x": jnp.asarray(rng.normal(size=(10, 6)), jnp.float32),
        "y": jnp.asarray(rng.normal(size=(10, 6)), jnp.float32),
    }
    return params, tx.init(params), batch


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="bias_inside_the_sum",
        old='    delta = lax.psum(hidden @ layer["down"], "model")\n'
        '    return x + delta + layer["bias"], None\n',
        new='    delta = lax.psum(hidden @ layer["down"] + layer["bias"], "model")\n'
        "    return x + delta, None\n",
        causes=("bias_n_times",),
    ),
    Bug(
        name="residual_inside_the_sum",
        old='    delta = lax.psum(hidden @ layer["down"], "model")\n'
        '    return x + delta + layer["bias"], None\n',
        new='    return lax.psum(x + hidden @ layer["down"], "model") + layer["bias"], None\n',
        causes=("bias_n_times",),
    ),
    Bug(
        name="partial_products_averaged",
        old='lax.psum(hidden @ layer["down"], "model")',
        new='lax.pmean(hidden @ layer["down"], "model")',
        causes=("divided_by_n",),
    ),
    Bug(
        name="not_summed",
        old='delta = lax.psum(hidden @ layer["down"], "model")',
        new='delta = hidden @ layer["down"]',
        also=(
            (
                "in_specs=(SPECS, P()), out_specs=P())",
                "in_specs=(SPECS, P()), out_specs=P(), check_vma=False)",
            ),
        ),
        code="hazard.replicas_differ",
        causes=("missing_psum",),
    ),
)
