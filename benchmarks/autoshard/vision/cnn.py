"""A residual network of strided convolutions with a dense head."""

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

_WIDTHS = (64, 128, 256, 512)


def convolve(x, kernel, stride=1):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), "SAME", dimension_numbers=numbers
    )


def loss(params, images, labels):
    x = convolve(images, params["stem"], stride=4)
    for stage in params["stages"]:
        x = jax.nn.relu(convolve(x, stage["reduce"], stride=2))
        for kernel in stage["residual"]:
            x = x + convolve(jax.nn.relu(x), kernel)
    return cross_entropy(jnp.mean(x, (1, 2)) @ params["head"], labels)


def make_program() -> BenchmarkProgram:
    stages = [
        {"reduce": array(3, 3, before, width), "residual": [array(3, 3, width, width)] * 3}
        for before, width in zip((64, *_WIDTHS), _WIDTHS, strict=False)
    ]
    params = {"stem": array(7, 7, 3, 64), "stages": stages, "head": array(512, 1000)}
    return train_program(loss, params, array(2048, 256, 256, 3), tokens(2048))
