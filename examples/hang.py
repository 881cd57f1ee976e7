"""A training step that works on one device and hangs on many; `shardlab check` says where.

    shardlab check examples/hang.py:step --mesh data=8

The author wanted to clip the gradients on the devices that need it, and put the mean over all
devices into that branch.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P


def clipped_mean(gradient):
    too_large = jnp.linalg.norm(gradient) > 1.0
    return lax.cond(
        too_large,
        lambda g: lax.pmean(g / jnp.linalg.norm(g), "data"),
        lambda g: g,
        gradient,
    )


def body(w, x, y):
    gradient = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return w - 0.1 * clipped_mean(gradient)


step = jax.shard_map(body, in_specs=(P(), P("data"), P("data")), out_specs=P(), check_vma=False)

example_args = ("f32[6,3]", "f32[48,6]", "f32[48,3]")
