"""Tensor parallel: Megatron's f and g as custom gradients, with the check for varying axes off."""

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
tx = optax.sgd(0.1)
SPECS = {"w1": P(None, "model"), "b1": P("model"), "w2": P("model"), "b2": P(), "g": P()}


@jax.custom_vjp
def copy_in(x):
    return x


copy_in.defvjp(lambda x: (x, None), lambda _, g: (lax.psum(g, "model"),))


@jax.custom_vjp
def reduce_out(x):
    return lax.psum(x, "model")


reduce_out.defvjp(lambda x: (lax.psum(x, "model"), None), lambda _, g: (g,))


def mlp(params, x, enter=copy_in, leave=reduce_out):
    x = enter(x * params["g"])
    hidden = jax.nn.gelu(x @ params["w1"] + params["b1"])
    return leave(hidden @ params["w2"]) + params["b2"]


def loss_fn(params, x, y, **ends):
    return jnp.mean((x + mlp(params, x, **ends) - y) ** 2)


@functools.partial(
    jax.shard_map,
    in_specs=(SPECS, P(), P(), P()),
    out_specs=(SPECS, P()),
    check_vma=False,
)
def train_step(params, opt_state, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    updates, _ = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), loss


def step(params, opt_state, x, y):
    return train_step(params, opt_state, x, y)


def reference(params, opt_state, x, y):
    ends = {"enter": lambda x: x, "leave": lambda x: x}
    loss, grads = jax.value_and_grad(functools.partial(loss_fn, **ends))(params, x, y)
    updates, _ = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), loss


def example_args():
    rng = np.random.default_rng(22)
    shapes = {"w1": (5, 24), "b1": (24,), "w2": (24, 5), "b2": (5,), "g": (5,)}
    params = {n: jnp.asarray(rng.normal(size=s) / 2, jnp.float32) for n, s in shapes.items()}
    x, y = (jnp.asarray(rng.normal(size=(7, 5)), jnp.float32) for _ in range(2))
    return params, tx.init(params), x, y


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="gradient_of_the_input_not_summed",
        old='lambda _, g: (lax.psum(g, "model"),))',
        new="lambda _, g: (g,))",
        code="hazard.replicas_differ",
        causes=("missing_psum",),
    ),
    Bug(
        name="gradient_summed_at_both_ends",
        old='(lax.psum(x, "model"), None), lambda _, g: (g,))',
        new='(lax.psum(x, "model"), None), lambda _, g: (lax.psum(g, "model"),))',
        causes=("gradient_scaled_by_n",),
    ),
    Bug(
        name="output_bias_inside",
        old='leave(hidden @ params["w2"]) + params["b2"]',
        new='leave(hidden @ params["w2"] + params["b2"])',
        causes=("bias_n_times",),
    ),
    Bug(
        name="residual_inside",
        old='return leave(hidden @ params["w2"]) + params["b2"]',
        new='return leave(hidden @ params["w2"] + x) - x + params["b2"]',
        causes=("bias_n_times",),
    ),
)
