"""A decoder whose layers are written as a Python loop."""

from __future__ import annotations

from benchmarks.autoshard.layers import block, block_shapes, rms_norm
from benchmarks.autoshard.program import (
    BenchmarkProgram,
    array,
    cross_entropy,
    tokens,
    train_program,
)


def loss(params, ids, labels):
    x = params["embedding"][ids]
    for layer in params["layers"]:
        x = block(layer, x)
    return cross_entropy(rms_norm(x, params["norm"]) @ params["head"], labels)


def make_program(n_layers: int = 12) -> BenchmarkProgram:
    params = {
        "embedding": array(32768, 2048),
        "layers": [block_shapes(2048, 8192, 16)] * n_layers,
        "norm": array(2048),
        "head": array(2048, 32768),
    }
    return train_program(loss, params, tokens(128, 2048), tokens(128, 2048))
