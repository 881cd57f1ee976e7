"""A graph network: messages along edges are gathered by index and added with segment_sum."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from benchmarks.autoshard.program import BenchmarkProgram, array, tokens, train_program


def loss(params, nodes, senders, receivers, target):
    x = nodes
    for layer in params:
        messages = jax.nn.relu(x[senders] @ layer["message"])
        received = jax.ops.segment_sum(messages, receivers, num_segments=x.shape[0])
        x = x + jax.nn.relu(jnp.concatenate([x, received], -1) @ layer["update"])
    return jnp.mean(jnp.square(x - target).astype(jnp.float32))


def make_program() -> BenchmarkProgram:
    layer = {"message": array(256, 256), "update": array(512, 256)}
    n_nodes, n_edges = 2**18, 2**21
    nodes = array(n_nodes, 256)
    return train_program(loss, [layer] * 3, nodes, tokens(n_edges), tokens(n_edges), nodes)
