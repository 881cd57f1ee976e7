"""A decoder of 24 layers as a scan over stacked parameters."""

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
    return cross_entropy(rms_norm(x, params["norm"]) @ params["head"], labels)


def make_program() -> BenchmarkProgram:
    params = {
        "embedding": array(32768, 4096),
        "layers": stacked(24, block_shapes(4096, 16384, 32)),
        "norm": array(4096),
        "head": array(4096, 32768),
    }
    return train_program(loss, params, tokens(64, 1024), tokens(64, 1024))
