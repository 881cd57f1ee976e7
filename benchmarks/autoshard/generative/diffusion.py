"""A denoiser step of diffusion: noise is added at a random time, and predicted."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.autoshard.layers import block, block_shapes
from benchmarks.autoshard.program import BenchmarkProgram, array, stacked, train_program


def loss(params, images, times, noise):
    signal = jnp.cos(times * (jnp.pi / 2))[:, None, None].astype(images.dtype)
    noisy = images * signal + noise * jnp.sqrt(1 - signal**2)
    frequencies = jnp.exp(jnp.linspace(0.0, 6.0, params["time"].shape[0]))
    angles = jnp.sin(times[:, None] * frequencies).astype(images.dtype)
    x = noisy @ params["input"] + (angles @ params["time"])[:, None, :]
    x, _ = jax.lax.scan(
        lambda x, layer: (block(layer, x, is_causal=False), None), x, params["layers"]
    )
    return jnp.mean(jnp.square(x @ params["output"] - noise).astype(jnp.float32))


def make_program() -> BenchmarkProgram:
    params = {
        "input": array(64, 1536),
        "time": array(256, 1536),
        "layers": stacked(12, block_shapes(1536, 6144, 16)),
        "output": array(1536, 64),
    }
    images = array(256, 1024, 64)
    return train_program(loss, params, images, array(256, dtype=jnp.float32), images)
