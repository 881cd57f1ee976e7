"""One trunk and three heads, whose losses are added: classes, a regression, a ranking."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.autoshard.program import (
    BenchmarkProgram,
    array,
    cross_entropy,
    tokens,
    train_program,
)


def loss(params, x, label, target):
    trunk = x
    for layer in params["trunk"]:
        trunk = jax.nn.relu(trunk @ layer["kernel"])
    classes = cross_entropy(trunk @ params["classes"], label)
    error = jnp.square(trunk @ params["regression"] - target)
    scores = (trunk @ params["ranking"])[:, 0]
    margins = jax.nn.softplus(scores[1::2] - scores[::2])
    means = [jnp.mean(value.astype(jnp.float32)) for value in (error, margins)]
    return classes + 0.5 * means[0] + 0.1 * means[1]


def make_program() -> BenchmarkProgram:
    params = {
        "trunk": [{"kernel": array(4096, 4096)}] * 4,
        "classes": array(4096, 32768),
        "regression": array(4096, 64),
        "ranking": array(4096, 1),
    }
    return train_program(loss, params, array(16384, 4096), tokens(16384), array(16384, 64))
