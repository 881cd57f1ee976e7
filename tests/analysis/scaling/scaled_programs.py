"""Programs for scaled-down checks: what carries over to 65,536 devices, and what must not.

Each program of `BROKEN` is right on every mesh of 2, 3 or 4 devices, unless its comment says
otherwise, and names the obligation that fails.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

sharded = functools.partial(jax.shard_map, in_specs=P("x"), out_specs=P("x"))
reduced = functools.partial(jax.shard_map, in_specs=P("x"), out_specs=P())


def ring(n: int) -> list[tuple[int, int]]:
    return [(i, (i + 1) % n) for i in range(n)]


# ------------------------------------------------------------------------------- must not carry


@sharded
def doubles_device_5(x):
    return jnp.where(lax.axis_index("x") == 5, x * 2, x)


@sharded
def doubles_after_an_offset(x):
    data_and_position = x * 0 + lax.axis_index("x")
    return jnp.where(data_and_position > 40, x * 2, x)


@sharded
def doubles_if_there_are_many_devices(x):
    return x * 2 if lax.axis_size("x") > 100 else x


@sharded
def another_factor_if_there_are_many_devices(x):
    return x * (2.0 if lax.axis_size("x") > 100 else 1.0)


@sharded
def another_shift_if_there_are_many_devices(x):
    n = lax.axis_size("x")
    forth = ring(n) if n <= 8 else [(i, (i + 2) % n) for i in range(n)]
    return lax.ppermute(lax.ppermute(x, "x", forth), "x", [(d, s) for s, d in ring(n)])


@reduced
def sums_in_bfloat16(x):
    return lax.psum(x.sum().astype(jnp.bfloat16), "x").astype(jnp.float32)


@reduced
def sums_in_float16(x):
    return lax.psum(x.sum().astype(jnp.float16), "x").astype(jnp.float32)


@reduced
def counts_in_int8(x):
    return lax.psum((x > 0).sum().astype(jnp.int8), "x").astype(jnp.int32)


@reduced
def adds_in_a_bfloat16_loop(x):
    def add(carry, _):
        total, block = carry
        block = lax.ppermute(block, "x", ring(lax.axis_size("x")))
        return (total + block, block), None

    block = x.sum().astype(jnp.bfloat16)
    (total, _), _ = lax.scan(add, (block * 0, block), None, length=lax.axis_size("x"))
    return lax.pmax(total, "x").astype(jnp.float32)


@reduced
def divides_by_8(x):  # wrong on 2, 3 and 4 devices too
    return lax.psum(x.mean(), "x") / 8


@reduced
def weighs_by_a_table_of_8(x):
    weights = jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    return lax.psum(x.sum() * weights[lax.axis_index("x")], "x")


@sharded
def treats_groups_of_8_differently(x):
    return jnp.where(lax.axis_index("x") // 8 == 0, x, x * 2)


@sharded
def tests_a_bit_of_the_position(x):
    return jnp.where(lax.axis_index("x") & 8, x * 2, x)


@reduced
def limits_the_position(x):
    return lax.psum(x.sum() * 0 + jnp.minimum(lax.axis_index("x"), 7) // 7, "x") * 0 + lax.psum(
        x.sum(), "x"
    )


@reduced
def computes_an_offset_in_int16(x):
    offset = lax.axis_index("x").astype(jnp.int16) * 2000
    return lax.psum(jnp.where(offset >= 0, x.sum(), 0), "x")


@sharded
def loops_until_device_9(x):
    last = lax.fori_loop(0, 4, lambda i, at: at + 1, lax.axis_index("x"))
    return jnp.where(last == 13, x * 2, x)


@sharded
def compares_the_number_of_devices_while_it_runs(x):
    n_devices = lax.psum(jnp.ones((), jnp.int32), "x")
    return jnp.where(n_devices > 100, x * 2, x)


@sharded
def limits_the_number_of_devices(x):
    n_devices = lax.psum(jnp.ones((), jnp.int32), "x")
    return x * (n_devices // n_devices) * jnp.minimum(n_devices, 9) / jnp.minimum(n_devices, 10)


@sharded
def reads_the_block_of_device_7(x):
    blocks = lax.all_gather(x, "x")
    return x + 0 * lax.dynamic_index_in_dim(blocks, 7, keepdims=False)


@sharded
def calls_the_host(x):
    return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


BROKEN = {
    doubles_device_5: "device index",
    doubles_after_an_offset: "device index",
    doubles_if_there_are_many_devices: "same program",
    another_factor_if_there_are_many_devices: "same program",
    another_shift_if_there_are_many_devices: "permutations",
    sums_in_bfloat16: "number ranges",
    sums_in_float16: "number ranges",
    counts_in_int8: "number ranges",
    adds_in_a_bfloat16_loop: "number ranges",
    divides_by_8: "values",
    weighs_by_a_table_of_8: "device index",
    treats_groups_of_8_differently: "device index",
    tests_a_bit_of_the_position: "device index",
    limits_the_position: "device index",
    computes_an_offset_in_int16: "number ranges",
    loops_until_device_9: "device index",
    compares_the_number_of_devices_while_it_runs: "device index",
    limits_the_number_of_devices: "device index",
    reads_the_block_of_device_7: "device index",
    calls_the_host: "same program",
}


# ------------------------------------------------------------------------------------ must carry


@reduced
def mean(x):
    return lax.pmean(x.mean(), "x")


@reduced
def value_of_the_last_device(x):
    is_last = lax.axis_index("x") == lax.axis_size("x") - 1
    return lax.psum(jnp.where(is_last, x[-1], 0), "x")


@sharded
def rolls_by_one(x):
    before = lax.ppermute(x[-1:], "x", ring(lax.axis_size("x")))
    return jnp.concatenate([before, x[:-1]])


@sharded
def causal_sums(x):
    """Sum of all elements up to each one, with the blocks of a ring."""
    i, n = lax.axis_index("x"), lax.axis_size("x")
    positions = i * x.shape[0] + jnp.arange(x.shape[0])

    def add_block(carry, step):
        total, block = carry
        others = ((i - step) % n) * x.shape[0] + jnp.arange(x.shape[0])
        total += jnp.where(positions[:, None] >= others, block, 0).sum(1)
        return (total, lax.ppermute(block, "x", ring(n))), None

    (total, _), _ = lax.scan(add_block, (x * 0, x), jnp.arange(n))
    return total


@functools.partial(jax.shard_map, in_specs=(P("x", None), P()), out_specs=P())
def embedding(table, ids):
    local = ids - lax.axis_index("x") * table.shape[0]
    is_mine = (local >= 0) & (local < table.shape[0])
    rows = jnp.take(table, jnp.clip(local, 0, table.shape[0] - 1), axis=0)
    return lax.psum(jnp.where(is_mine[:, None], rows, 0), "x")


@functools.partial(jax.shard_map, in_specs=(P(), P("x")), out_specs=P())
def own_part_of_a_replicated_array(scales, x):
    start = lax.axis_index("x") * x.shape[0]
    return lax.psum((lax.dynamic_slice(scales, (start,), x.shape) * x).sum(), "x")
