"""Gradients of eight microbatches are added by a scan before one step of the optimizer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from benchmarks.autoshard.layers import gated_mlp, gated_mlp_shapes
from benchmarks.autoshard.program import BenchmarkProgram, array

_OPTIMIZER = optax.adam(1e-3)


def loss(params, x):
    for layer in params:
        x = x + gated_mlp(layer, x)
    return jnp.mean(jnp.square(x).astype(jnp.float32))


def train_step(params, opt_state, microbatches):
    def add_gradients(total, microbatch):
        value, gradients = jax.value_and_grad(loss)(params, microbatch)
        return jax.tree.map(jnp.add, total, gradients), value

    zeros = jax.tree.map(jnp.zeros_like, params)
    gradients, values = jax.lax.scan(add_gradients, zeros, microbatches)
    updates, opt_state = _OPTIMIZER.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, jnp.mean(values)


def make_program() -> BenchmarkProgram:
    params = [gated_mlp_shapes(2048, 8192)] * 6
    opt_state = jax.eval_shape(_OPTIMIZER.init, params)
    return BenchmarkProgram(function=train_step, args=(params, opt_state, array(8, 16384, 2048)))
