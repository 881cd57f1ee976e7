"""AdamW with clipping and a schedule in float32 over bfloat16 weights: four copies of each."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from benchmarks.autoshard.layers import gated_mlp, gated_mlp_shapes
from benchmarks.autoshard.program import BenchmarkProgram, array, stacked, train_program


def loss(params, x, target):
    compute = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    x, _ = jax.lax.scan(lambda x, layer: (x + gated_mlp(layer, x), None), x, compute)
    return jnp.mean(jnp.square(x - target).astype(jnp.float32))


def make_program() -> BenchmarkProgram:
    layers = stacked(8, gated_mlp_shapes(4096, 16384))
    params = jax.tree.map(lambda leaf: array(*leaf.shape, dtype=jnp.float32), layers)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 100, 10_000)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
    x = array(65536, 4096)
    return train_program(loss, params, x, x, optimizer=optimizer)
