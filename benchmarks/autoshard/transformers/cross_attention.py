"""An encoder-decoder layer stack: the decoder attends to the encoder's output."""

from __future__ import annotations

import jax.numpy as jnp

from benchmarks.autoshard.layers import (
    attention,
    attention_shapes,
    block,
    block_shapes,
    rms_norm,
)
from benchmarks.autoshard.program import BenchmarkProgram, array, train_program


def loss(params, source, x, target):
    for layer in params["encoder"]:
        source = block(layer, source, is_causal=False)
    for layer in params["decoder"]:
        x = block(layer["block"], x)
        normed = rms_norm(x, layer["cross_norm"])
        x = x + attention(layer["cross"], normed, source, is_causal=False)
    return jnp.mean(jnp.square(x - target).astype(jnp.float32))


def make_program() -> BenchmarkProgram:
    decoder = {
        "block": block_shapes(1024, 4096, 16),
        "cross": attention_shapes(1024, 16, 64),
        "cross_norm": array(1024),
    }
    params = {"encoder": [block_shapes(1024, 4096, 16)] * 4, "decoder": [decoder] * 4}
    x = array(256, 512, 1024)
    return train_program(loss, params, array(256, 1024, 1024), x, x)
