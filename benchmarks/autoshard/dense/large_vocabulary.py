"""A linear classifier over a large vocabulary: one matrix, and a softmax over its columns."""

from __future__ import annotations

import optax

from benchmarks.autoshard.program import (
    BenchmarkProgram,
    array,
    cross_entropy,
    tokens,
    train_program,
)


def loss(params, features, labels):
    return cross_entropy(features @ params["kernel"], labels)


def make_program() -> BenchmarkProgram:
    params = {"kernel": array(1024, 262144)}
    return train_program(loss, params, array(8192, 1024), tokens(8192), optimizer=optax.sgd(0.1))
