"""A small decoder in NNX whose parameters carry their own shardings.

    shardlab plan examples/nnx_transformer.py:Decoder --mesh fsdp=4,tensor=2 --optimizer adamw

The names in `out_sharding` are mesh axes here. Names such as "embed" and "mlp" work as well: then
rules map each of them to a mesh axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import optax
from flax import nnx


@dataclass(frozen=True)
class Config:
    """The architecture of a decoder; keys and values have fewer heads than queries."""

    vocab: int = 1024
    layers: int = 2
    embed: int = 256
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 32
    mlp: int = 512


def linear(n_in: int, n_out: int, names: tuple[str | None, ...], rngs: nnx.Rngs) -> nnx.Linear:
    """Return a linear layer whose kernel is sharded over these mesh axes."""
    init = nnx.with_partitioning(nnx.initializers.lecun_normal(), names)
    return nnx.Linear(n_in, n_out, use_bias=False, kernel_init=init, rngs=rngs)


class Attention(nnx.Module):
    """Causal attention; a group of query heads shares each head of keys and values."""

    def __init__(self, config: Config, rngs: nnx.Rngs):
        self.config = config
        size, kv_size = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = linear(config.embed, size, ("fsdp", "tensor"), rngs)
        self.k_proj = linear(config.embed, kv_size, ("fsdp", "tensor"), rngs)
        self.v_proj = linear(config.embed, kv_size, ("fsdp", "tensor"), rngs)
        self.o_proj = linear(size, config.embed, ("tensor", "fsdp"), rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        q, k, v = (self.split(part(x)) for part in (self.q_proj, self.k_proj, self.v_proj))
        attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(attended.reshape(*x.shape[:-1], -1))

    def split(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:-1], -1, self.config.head_dim)


class Layer(nnx.Module):
    """Pre-norm attention, then a gated MLP, each with a residual connection."""

    def __init__(self, config: Config, rngs: nnx.Rngs):
        self.attention_norm = nnx.RMSNorm(config.embed, rngs=rngs)
        self.attention = Attention(config, rngs)
        self.mlp_norm = nnx.RMSNorm(config.embed, rngs=rngs)
        self.gate_proj = linear(config.embed, config.mlp, ("fsdp", "tensor"), rngs)
        self.up_proj = linear(config.embed, config.mlp, ("fsdp", "tensor"), rngs)
        self.down_proj = linear(config.mlp, config.embed, ("tensor", "fsdp"), rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.attention_norm(x))
        h = self.mlp_norm(x)
        return x + self.down_proj(nnx.silu(self.gate_proj(h)) * self.up_proj(h))


class Decoder(nnx.Module):
    """Tokens in, for each place the logits of the next token out."""

    def __init__(self, config: Config = Config(), *, rngs: nnx.Rngs):  # noqa: B008 - it is frozen
        init = nnx.with_partitioning(nnx.initializers.normal(0.02), ("tensor", "fsdp"))
        self.embed = nnx.Embed(config.vocab, config.embed, embedding_init=init, rngs=rngs)
        self.layers = nnx.List([Layer(config, rngs) for _ in range(config.layers)])
        self.norm = nnx.RMSNorm(config.embed, rngs=rngs)
        self.head = linear(config.embed, config.vocab, ("fsdp", "tensor"), rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def loss(model: Decoder, tokens: jax.Array) -> jax.Array:
    """Return how badly the model guesses each token from those before it."""
    logits = model(tokens)[:, :-1]
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()
