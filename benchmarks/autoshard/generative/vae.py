"""A variational autoencoder: the sample comes from a random key among the arguments."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.autoshard.program import BenchmarkProgram, array, train_program


def loss(params, x, key):
    hidden = jax.nn.relu(x @ params["encoder"])
    mean, log_variance = jnp.split((hidden @ params["latent"]).astype(jnp.float32), 2, axis=-1)
    noise = jax.random.normal(key, mean.shape)
    sample = (mean + jnp.exp(0.5 * log_variance) * noise).astype(x.dtype)
    decoded = jax.nn.relu(sample @ params["decoder"]) @ params["output"]
    divergence = -0.5 * jnp.mean(1 + log_variance - mean**2 - jnp.exp(log_variance))
    return jnp.mean(jnp.square(decoded - x).astype(jnp.float32)) + divergence


def make_program() -> BenchmarkProgram:
    params = {
        "encoder": array(12288, 4096),
        "latent": array(4096, 1024),
        "decoder": array(512, 4096),
        "output": array(4096, 12288),
    }
    key = jax.eval_shape(lambda: jax.random.key(0))
    return train_program(loss, params, array(16384, 12288), key)
