"""A recommender: most of its bytes are embedding tables, most of its work a small MLP."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from benchmarks.autoshard.program import BenchmarkProgram, array, tokens, train_program


def loss(params, ids, dense, clicked):
    embedded = [table[ids[:, i]] for i, table in enumerate(params["tables"])]
    x = jnp.concatenate([dense, *embedded], -1)
    for kernel in params["mlp"]:
        x = jax.nn.relu(x @ kernel)
    logits = (x @ params["output"])[:, 0].astype(jnp.float32)
    return jnp.mean(optax.sigmoid_binary_cross_entropy(logits, clicked))


def make_program() -> BenchmarkProgram:
    params = {
        "tables": [array(2**22, 128), array(2**20, 128), array(2**16, 128), array(2**12, 128)],
        "mlp": [array(64 + 4 * 128, 1024), array(1024, 512)],
        "output": array(512, 1),
    }
    batch = 65536
    return train_program(
        loss,
        params,
        tokens(batch, 4),
        array(batch, 64),
        array(batch, dtype=jnp.float32),
        optimizer=optax.adagrad(0.01),
    )
