"""Grouped-query attention: 32 query heads share 8 key heads."""

from __future__ import annotations

import jax

from benchmarks.autoshard.layers import block, block_shapes, rms_norm
from benchmarks.autoshard.program import (
    BenchmarkProgram,
    array,
    cross_entropy,
    stacked,
    tokens,
    train_program,
)


def loss(params, ids, labels):
    x = params["embedding"][ids]
    x, _ = jax.lax.scan(lambda x, layer: (block(layer, x), None), x, params["layers"])
    # The embedding is tied: its transpose makes the logits.
    return cross_entropy(rms_norm(x, params["norm"]) @ params["embedding"].T, labels)


def make_program() -> BenchmarkProgram:
    params = {
        "embedding": array(131072, 4096),
        "layers": stacked(16, block_shapes(4096, 14336, 32, n_key_heads=8)),
        "norm": array(4096),
    }
    return train_program(loss, params, tokens(64, 2048), tokens(64, 2048))
