"""Programs that JAX rejects, in families; and programs with nothing to check."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from case import Table, f32
from jax import lax
from jax.sharding import PartitionSpec as P

pair = Table(grads=False)


@pair.wrong("jax.rejected", "model=4", f32(6, 16), f32(16, 5))
def output_that_is_not_replicated(x, w):
    @jax.shard_map(in_specs=(P(None, "model"), P("model")), out_specs=P())  # <- here
    def matmul(x, w):
        return x @ w

    return matmul(x, w)  # <- here


@pair.right
def output_that_is_summed(x, w):
    @jax.shard_map(in_specs=(P(None, "model"), P("model")), out_specs=P())
    def matmul(x, w):
        return lax.psum(x @ w, "model")

    return matmul(x, w)


@pair.wrong("jax.rejected", "data=4", f32(24, 5))
def carry_that_begins_equal_and_ends_different(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def total(x):
        def add(carry, row):
            return carry + row, None

        return lax.scan(add, jnp.zeros(5), x)[0][None]  # <- here

    return total(x)  # <- here


@pair.right
def carry_that_begins_different(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P())
    def total(x):
        def add(carry, row):
            return carry + row, None

        start = lax.pcast(jnp.zeros(5), "data", to="varying")
        return lax.psum(lax.scan(add, start, x)[0], "data")

    return total(x)


@pair.wrong("jax.rejected", "data=4", f32(24, 5), f32(2))
def branches_of_which_one_is_summed(x, flag):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P("data"))
    def step(x, flag):
        return lax.cond(  # <- here
            flag[0] > 0, lambda x: lax.psum(x, "data"), lambda x: x, x
        )

    return step(x, flag)  # <- here


@pair.right
def branches_of_which_both_are_summed(x, flag):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P())
    def step(x, flag):
        return lax.cond(
            flag[0] > 0,
            lambda x: lax.psum(x.sum(0), "data"),
            lambda x: lax.pmax(x.max(0), "data"),
            x,
        )

    return step(x, flag)


@pair.wrong("jax.rejected", "data=4", f32(24, 5), f32(5))
def one_spec_too_few(x, w):
    @jax.shard_map(in_specs=(P("data"),), out_specs=P("data"))  # <- here
    def apply(x, w):
        return x @ w

    return apply(x, w)  # <- here


@pair.right
def one_spec_for_each_argument(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P("data"))
    def apply(x, w):
        return x @ w

    return apply(x, w)


@pair.wrong("jax.rejected", "data=4", f32(24, 5))
def two_devices_that_send_to_one(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def step(x):
        return lax.ppermute(x, "data", [(0, 1), (2, 1), (1, 0)])  # <- here

    return step(x)  # <- here


@pair.right
def each_device_sends_to_one_of_its_own(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P())
    def step(x):
        n = lax.axis_size("data")
        ring = [(i, (i + 1) % n) for i in range(n)]
        return lax.psum(lax.ppermute(x.sum(0), "data", ring), "data")

    return step(x)


@pair.wrong("jax.rejected", "data=4", f32(24, 6))
def sum_scattered_over_an_axis_it_does_not_divide(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P(None, "data"))
    def reduce(x):
        return lax.psum_scatter(x, "data", scatter_dimension=1, tiled=True)  # <- here

    return reduce(x)  # <- here


@pair.right
def sum_scattered_over_an_axis_it_divides(x):
    @jax.shard_map(in_specs=P("data"), out_specs=P("data"))
    def reduce(x):
        padded = jnp.pad(x.T @ x, ((0, 2), (0, 0)))
        return lax.psum_scatter(padded, "data", scatter_dimension=0, tiled=True)

    return reduce(x)


@pair.wrong("jax.rejected", "data=2,model=4", f32(4, 16))
def constraint_on_an_axis_that_is_mapped(x):
    @jax.shard_map(in_specs=P("data", "model"), out_specs=P("data", "model"))
    def layer(x):
        return lax.with_sharding_constraint(2 * x, P("data"))  # <- here

    return layer(x)  # <- here


@pair.right
def constraint_outside_of_the_map(x):
    @jax.shard_map(in_specs=P("data", "model"), out_specs=P("data", "model"))
    def layer(x):
        return 2 * x

    return jax.jit(lambda x: lax.with_sharding_constraint(layer(x), P("data")))(x)


@pair.wrong("jax.rejected", "data=2,model=4", f32(8, 16))
def one_mesh_axis_for_two_array_axes(x):
    @jax.shard_map(in_specs=P("data", "data"), out_specs=P("data"))  # <- here
    def double(x):
        return 2 * x

    return double(x)  # <- here


@pair.right
def one_mesh_axis_for_each_array_axis(x):
    @jax.shard_map(in_specs=P("data", "model"), out_specs=P("data", "model"))
    def double(x):
        return 2 * x

    return double(x)


@pair.wrong("jax.rejected", "data=4", f32(24, 5), f32(7, 3))
def shapes_that_do_not_multiply(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P("data"))
    def apply(x, w):
        return x @ w  # <- here

    return apply(x, w)  # <- here


@pair.right
def shapes_that_multiply(x, w):
    @jax.shard_map(in_specs=(P("data"), P()), out_specs=P("data"))
    def apply(x, w):
        return x @ w[:5]

    return apply(x, w)


# --------------------------------------------------------------------- program.no_communication


@pair.wrong("program.no_communication", "data=4", f32(24, 5))
def program_of_one_device(x):
    return jnp.tanh(x).sum()


@pair.wrong("program.no_communication", "data=4", f32(24, 5), f32(5))
def jit_without_a_sharding(x, w):
    return jax.jit(lambda x, w: jax.nn.softmax(x @ w))(x, w)
