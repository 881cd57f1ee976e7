"""A diagonal state space layer: an associative scan over time, between two matrices."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.autoshard.program import BenchmarkProgram, array, train_program


def recur(decay, x):
    def combine(left, right):
        return left[0] * right[0], left[1] * right[0] + right[1]

    _, states = jax.lax.associative_scan(combine, (decay, x), axis=1)
    return states


def loss(params, x, target):
    for layer in params:
        inputs = (x @ layer["input"]).astype(jnp.float32)
        decay = jax.nn.sigmoid((x @ layer["decay"]).astype(jnp.float32))
        x = x + recur(decay, inputs).astype(x.dtype) @ layer["output"]
    return jnp.mean(jnp.square(x - target).astype(jnp.float32))


def make_program() -> BenchmarkProgram:
    layer = {"input": array(2048, 4096), "decay": array(2048, 4096), "output": array(4096, 2048)}
    x = array(128, 1024, 2048)
    return train_program(loss, [layer] * 2, x, x)
