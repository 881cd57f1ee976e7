"""A loss that is correct on one device and wrong on eight; `shardlab check` names the missing psum.

    shardlab check examples/forgotten_psum.py:loss --mesh data=8

Each device averages the errors of its own rows. The average over all devices is missing, and
`check_vma=False` turns off the check with which JAX would have rejected the program.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def body(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


SPECS = {"in_specs": (P(), P("data"), P("data")), "out_specs": P(), "check_vma": False}

loss = jax.shard_map(body, **SPECS)

example_args = ("f32[6]", "f32[48,6]", "f32[48]")
