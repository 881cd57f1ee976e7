"""Activations of each layer are recomputed in the backward pass (jax.checkpoint in a scan)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.autoshard.layers import block, block_shapes
from benchmarks.autoshard.program import BenchmarkProgram, array, stacked, train_program


def loss(params, x, target):
    @jax.checkpoint
    def advance(x, layer):
        return block(layer, x), None

    x, _ = jax.lax.scan(advance, x, params)
    return jnp.mean(jnp.square(x - target).astype(jnp.float32))


def make_program() -> BenchmarkProgram:
    x = array(64, 2048, 2048)
    return train_program(loss, stacked(12, block_shapes(2048, 8192, 16)), x, x)
