"""Contrastive learning with two towers: every query is scored against every item of the batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.autoshard.program import BenchmarkProgram, array, cross_entropy, train_program


def tower(params, x):
    for kernel in params:
        x = jax.nn.gelu(x @ kernel)
    return x / (jnp.linalg.norm(x.astype(jnp.float32), axis=-1, keepdims=True) + 1e-6)


def loss(params, queries, items):
    scores = 20 * tower(params["query"], queries) @ tower(params["item"], items).T
    matches = jnp.arange(scores.shape[0])
    return 0.5 * (cross_entropy(scores, matches) + cross_entropy(scores.T, matches))


def make_program() -> BenchmarkProgram:
    kernels = [array(2048, 8192), array(8192, 2048), array(2048, 512)]
    params = {"query": kernels, "item": kernels}
    return train_program(loss, params, array(32768, 2048), array(32768, 2048))
