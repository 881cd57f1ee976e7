"""A U-Net for segmentation: down, up, and connections across."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp

from benchmarks.autoshard.program import (
    BenchmarkProgram,
    array,
    cross_entropy,
    tokens,
    train_program,
)
from benchmarks.autoshard.vision.cnn import convolve

_WIDTHS = (64, 128, 256, 512)


def loss(params, images, labels):
    x, skipped = convolve(images, params["stem"]), []
    for kernel in params["down"]:
        skipped.append(x)
        x = jax.nn.relu(convolve(x, kernel, stride=2))
    for kernel, across in zip(params["up"], reversed(skipped), strict=True):
        x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
        x = jax.nn.relu(convolve(jnp.concatenate([x, across], -1), kernel))
    return cross_entropy(convolve(x, params["head"]), labels)


def make_program() -> BenchmarkProgram:
    pairs = list(itertools.pairwise(_WIDTHS))
    params = {
        "stem": array(3, 3, 3, _WIDTHS[0]),
        "down": [array(3, 3, narrow, wide) for narrow, wide in pairs],
        "up": [array(3, 3, narrow + wide, narrow) for narrow, wide in reversed(pairs)],
        "head": array(1, 1, _WIDTHS[0], 32),
    }
    return train_program(loss, params, array(256, 256, 256, 3), tokens(256, 256, 256))
