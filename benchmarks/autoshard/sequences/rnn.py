"""A gated recurrent unit, scanned over time."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.autoshard.program import BenchmarkProgram, array, train_program


def loss(params, x, target):
    def advance(state, x_t):
        update, reset = jnp.split(
            jax.nn.sigmoid(x_t @ params["gates_x"] + state @ params["gates_h"]), 2, axis=-1
        )
        new = jnp.tanh(x_t @ params["new_x"] + (reset * state) @ params["new_h"])
        state = update * state + (1 - update) * new
        return state, state

    first = jnp.zeros((x.shape[1], params["new_h"].shape[0]), x.dtype)
    _, states = jax.lax.scan(advance, first, x)
    return jnp.mean(jnp.square(states @ params["output"] - target).astype(jnp.float32))


def make_program() -> BenchmarkProgram:
    params = {
        "gates_x": array(1024, 8192),
        "gates_h": array(4096, 8192),
        "new_x": array(1024, 4096),
        "new_h": array(4096, 4096),
        "output": array(4096, 256),
    }
    # Time first, so that the scan runs over dimension 0.
    return train_program(loss, params, array(256, 4096, 1024), array(256, 4096, 256))
