"""A transformer-like stack, data and tensor parallel, and what one training step communicates.

    shardlab trace examples/train_step.py:step --mesh data=16,model=32 --hardware tpu-v5p

Each of the 24 layers shards its first kernel by columns and its second by rows over 'model'
(Megatron-style), so each needs one psum forward and one backward; the gradients are averaged
over 'data'.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P


def layer(x, kernels):
    up, down = kernels
    hidden = jax.nn.gelu(x @ up)
    return x + lax.psum(hidden @ down, "model"), None


def loss(params, x, y):
    out, _ = lax.scan(layer, x, params)
    return lax.pmean(jnp.mean((out - y).astype(jnp.float32) ** 2), "data")


def body(params, x, y):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    new = jax.tree.map(lambda w, g: w - (0.01 * g).astype(w.dtype), params, gradients)
    return value, new


KERNELS = (P(None, None, "model"), P(None, "model", None))

step = jax.shard_map(body, in_specs=(KERNELS, P("data"), P("data")), out_specs=(P(), KERNELS))

example_args = (
    ("bf16[24,4096,16384]", "bf16[24,16384,4096]"),
    "bf16[8192,4096]",
    "bf16[8192,4096]",
)
