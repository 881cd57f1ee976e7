"""Adafactor: the second moments are one row and one column of each matrix."""

from __future__ import annotations

import jax.numpy as jnp
import optax

from benchmarks.autoshard.layers import gated_mlp, gated_mlp_shapes
from benchmarks.autoshard.program import BenchmarkProgram, array, train_program


def loss(params, x, target):
    for layer in params:
        x = x + gated_mlp(layer, x)
    return jnp.mean(jnp.square(x - target).astype(jnp.float32))


def make_program() -> BenchmarkProgram:
    x = array(32768, 4096)
    layers = [gated_mlp_shapes(4096, 16384)] * 4
    return train_program(loss, layers, x, x, optimizer=optax.adafactor(1e-3))
