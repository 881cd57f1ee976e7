"""A small decoder as a Flax NNX module, with the functional API: split and merge."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from benchmarks.autoshard.program import BenchmarkProgram, cross_entropy, tokens, train_program


class Decoder(nnx.Module):
    def __init__(self, width: int, n_layers: int, vocabulary: int, rngs: nnx.Rngs) -> None:
        options = {"rngs": rngs, "param_dtype": jnp.bfloat16, "dtype": jnp.bfloat16}
        self.embed = nnx.Embed(vocabulary, width, **options)
        self.attention = nnx.List(
            [nnx.MultiHeadAttention(16, width, decode=False, **options) for _ in range(n_layers)]
        )
        self.up = nnx.List([nnx.Linear(width, 4 * width, **options) for _ in range(n_layers)])
        self.down = nnx.List([nnx.Linear(4 * width, width, **options) for _ in range(n_layers)])

    def __call__(self, ids):
        x = self.embed(ids)
        for attention, up, down in zip(self.attention, self.up, self.down, strict=True):
            x = x + attention(x, is_causal=True)
            x = x + down(nnx.gelu(up(x)))
        return self.embed.attend(x)


def make_program() -> BenchmarkProgram:
    model = nnx.eval_shape(lambda: Decoder(1024, 4, 32768, nnx.Rngs(0)))
    definition, params, rest = nnx.split(model, nnx.Param, ...)

    def loss(params, ids, labels):
        rest_values = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), rest)
        return cross_entropy(nnx.merge(definition, params, rest_values)(ids), labels)

    return train_program(loss, params, tokens(256, 512), tokens(256, 512))
