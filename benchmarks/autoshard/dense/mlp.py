"""Eight dense layers with residuals, trained with Adam."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.autoshard.program import BenchmarkProgram, array, train_program


def loss(params, x, target):
    for layer in params:
        x = x + jax.nn.relu(x @ layer["up"]) @ layer["down"]
    return jnp.mean(jnp.square(x - target).astype(jnp.float32))


def make_program() -> BenchmarkProgram:
    layer = {"up": array(2048, 8192), "down": array(8192, 2048)}
    return train_program(loss, [layer] * 8, array(65536, 2048), array(65536, 2048))
