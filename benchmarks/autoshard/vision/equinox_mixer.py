"""An MLP-Mixer as an Equinox module: one MLP over patches, one over channels."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp

from benchmarks.autoshard.program import BenchmarkProgram, array, train_program


class MixerLayer(eqx.Module):
    over_patches: eqx.nn.MLP
    over_channels: eqx.nn.MLP

    def __init__(self, n_patches: int, width: int, key) -> None:
        first, second = jax.random.split(key)
        options = {"depth": 1, "dtype": jnp.bfloat16}
        self.over_patches = eqx.nn.MLP(n_patches, n_patches, 2048, key=first, **options)
        self.over_channels = eqx.nn.MLP(width, width, 4096, key=second, **options)

    def __call__(self, x):
        x = x + jax.vmap(self.over_patches, in_axes=1, out_axes=1)(x)
        return x + jax.vmap(self.over_channels)(x)


def make_program() -> BenchmarkProgram:
    layers = eqx.filter_eval_shape(
        lambda: [MixerLayer(256, 1024, jax.random.key(seed)) for seed in range(4)]
    )
    # The activation functions of the MLPs are leaves too; only arrays are arguments.
    params, static = eqx.partition(layers, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def loss(params, x, target):
        for layer in eqx.combine(params, static):
            x = jax.vmap(layer)(x)
        return jnp.mean(jnp.square(x - target).astype(jnp.float32))

    x = array(1024, 256, 1024)
    return train_program(loss, params, x, x)
