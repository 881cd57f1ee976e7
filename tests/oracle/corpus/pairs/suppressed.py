"""Findings that are intended, and ignore comments that are invalid."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from case import Table, f32
from jax import lax
from jax.sharding import PartitionSpec as P

pair = Table(grads=False)


@pair.wrong("ignore.invalid", "data=4", f32(24, 5), f32(5), besides="hazard.psum_of_replicated")
def comment_without_a_reason(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P())
    def step(x, w):
        grads = lax.psum(w, "data")  # shardlab: ignore[hazard.psum_of_replicated]
        return jnp.sign(grads) * lax.pmean(x.mean(0), "data")

    return step(x, w)


@pair.right
def comment_with_a_reason(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P())
    def step(x, w):
        grads = lax.psum(w, "data")  # shardlab: ignore[hazard.psum_of_replicated] a sign
        return jnp.sign(grads) * lax.pmean(x.mean(0), "data")

    return step(x, w)


@pair.wrong("ignore.invalid", "data=4", f32(24, 8), besides="waste.psum_then_slice")
def comment_with_a_code_that_does_not_exist(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def reduce(x):
        # shardlab: ignore[waste.psum_slice] older hardware has no reduce-scatter
        full = lax.psum(x.T @ x, "data")
        rows = 8 // lax.axis_size("data")
        return lax.dynamic_slice_in_dim(full, lax.axis_index("data") * rows, rows)

    return reduce(x)


@pair.right
def comment_on_the_line_above(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def reduce(x):
        # shardlab: ignore[waste.psum_then_slice] older hardware has no reduce-scatter
        full = lax.psum(x.T @ x, "data")
        rows = 8 // lax.axis_size("data")
        return lax.dynamic_slice_in_dim(full, lax.axis_index("data") * rows, rows)

    return reduce(x)
