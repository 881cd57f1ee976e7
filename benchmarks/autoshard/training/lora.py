"""Low-rank adaptation: the base weights are frozen arguments, only two thin factors learn."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.autoshard.program import BenchmarkProgram, array, train_program

_LAYERS, _RANK = 8, 16


def loss(adapters, base, x, target):
    for adapter, kernel in zip(adapters, base, strict=True):
        x = x + jax.nn.gelu(x @ kernel + (x @ adapter["a"]) @ adapter["b"])
    return jnp.mean(jnp.square(x - target).astype(jnp.float32))


def make_program() -> BenchmarkProgram:
    adapter = {"a": array(8192, _RANK), "b": array(_RANK, 8192)}
    base = [array(8192, 8192)] * _LAYERS
    x = array(16384, 8192)
    return train_program(loss, [adapter] * _LAYERS, base, x, x)
