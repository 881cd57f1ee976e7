"""A vision transformer: patches by one matrix, 12 layers, and the mean over patches."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.autoshard.layers import block, block_shapes
from benchmarks.autoshard.program import (
    BenchmarkProgram,
    array,
    cross_entropy,
    stacked,
    tokens,
    train_program,
)

_PATCH = 16


def patches(images):
    n, height, width, channels = images.shape
    rows, columns = height // _PATCH, width // _PATCH
    x = images.reshape(n, rows, _PATCH, columns, _PATCH, channels)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(n, rows * columns, _PATCH * _PATCH * channels)


def loss(params, images, labels):
    x = patches(images) @ params["patches"] + params["positions"]
    x, _ = jax.lax.scan(
        lambda x, layer: (block(layer, x, is_causal=False), None), x, params["layers"]
    )
    return cross_entropy(jnp.mean(x, 1) @ params["head"], labels)


def make_program() -> BenchmarkProgram:
    params = {
        "patches": array(768, 1024),
        "positions": array(256, 1024),
        "layers": stacked(12, block_shapes(1024, 4096, 16)),
        "head": array(1024, 1000),
    }
    return train_program(loss, params, array(1024, 256, 256, 3), tokens(1024))
