"""Attention over the edges of a graph: a softmax for each node over the edges that reach it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.autoshard.program import BenchmarkProgram, array, tokens, train_program


def layer_output(layer, x, senders, receivers):
    n_nodes = x.shape[0]
    values = jnp.einsum("nd,dhk->nhk", x, layer["value"])
    scores = jnp.einsum("ehk,hk->eh", values[senders] + values[receivers], layer["score"])
    scores = scores.astype(jnp.float32)
    largest = jax.ops.segment_max(scores, receivers, num_segments=n_nodes)
    weights = jnp.exp(scores - largest[receivers])
    total = jax.ops.segment_sum(weights, receivers, num_segments=n_nodes)
    weights = (weights / (total[receivers] + 1e-6)).astype(x.dtype)
    received = jax.ops.segment_sum(weights[..., None] * values[senders], receivers, n_nodes)
    return jnp.einsum("nhk,hkd->nd", received, layer["out"])


def loss(params, nodes, senders, receivers, target):
    x = nodes
    for layer in params:
        x = x + layer_output(layer, x, senders, receivers)
    return jnp.mean(jnp.square(x - target).astype(jnp.float32))


def make_program() -> BenchmarkProgram:
    layer = {"value": array(512, 8, 64), "score": array(8, 64), "out": array(8, 64, 512)}
    n_nodes, n_edges = 2**16, 2**20
    nodes = array(n_nodes, 512)
    return train_program(loss, [layer] * 2, nodes, tokens(n_edges), tokens(n_edges), nodes)
