"""A dense autoencoder with a narrow code in the middle."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp

from benchmarks.autoshard.program import BenchmarkProgram, array, train_program

_WIDTHS = (16384, 4096, 1024, 256, 1024, 4096, 16384)


def loss(params, x):
    decoded = x
    for layer in params[:-1]:
        decoded = jax.nn.gelu(decoded @ layer["kernel"] + layer["bias"])
    decoded = decoded @ params[-1]["kernel"] + params[-1]["bias"]
    return jnp.mean(jnp.square(decoded - x).astype(jnp.float32))


def make_program() -> BenchmarkProgram:
    params = [
        {"kernel": array(rows, columns), "bias": array(columns)}
        for rows, columns in itertools.pairwise(_WIDTHS)
    ]
    return train_program(loss, params, array(16384, 16384))
