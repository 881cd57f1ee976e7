"""`jax.sharding.no_collectives` (JAX 0.12): operations that communicate over an axis are refused.

JAX checks it while it traces. Before JAX 0.12 this module has no programs.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, reshard
from jax.sharding import PartitionSpec as P

from side_by_side.registry import Programs

PROGRAMS = program = Programs()

no_collectives = getattr(jax.sharding, "no_collectives", None)


def without_collectives(*names):
    """Add a program that runs on Explicit axes, with collectives over `names` forbidden."""

    def add_program(function):
        @functools.wraps(function)
        def run():
            mesh = jax.make_mesh((2, 4), ("X", "Y"), axis_types=(AxisType.Explicit,) * 2)
            with jax.set_mesh(mesh):
                x = jax.device_put(np.arange(32, dtype=np.float32).reshape(4, 8), P("X", "Y"))
                with no_collectives(set(names)):
                    return function(x)

        return program(run) if no_collectives is not None else run

    return add_program


@without_collectives("X")
def a_sum_over_the_sharded_dimension(x):
    return jax.jit(lambda x: x.sum(0))(x)


@without_collectives("X")
def an_eager_sum_over_the_sharded_dimension(x):
    return jnp.sum(x, axis=0)


@without_collectives("X")
def a_sum_over_another_axis(x):
    return jax.jit(lambda x: x.sum(1))(x), jnp.sum(x, axis=1)


@without_collectives("X")
def elementwise_operations(x):
    return jax.jit(lambda x: jnp.sin(x) * 2)(x), x + 1


@without_collectives("Y")
def a_contraction_over_the_sharded_dimension(x):
    y = jax.device_put(np.ones((8, 2), np.float32), P("Y", None))
    return jax.jit(lambda x, y: jnp.einsum("ab,bc->ac", x, y, out_sharding=P("X", None)))(x, y)


@without_collectives("Y")
def a_contraction_that_stays_unreduced(x):
    y = jax.device_put(np.ones((8, 2), np.float32), P("Y", None))
    out_sharding = P("X", None, unreduced={"Y"})
    multiply = jax.jit(lambda x, y: jnp.einsum("ab,bc->ac", x, y, out_sharding=out_sharding))
    return [np.asarray(shard.data) for shard in multiply(x, y).addressable_shards]


@without_collectives("Y")
def a_reshard_that_gathers(x):
    return reshard(x, P("X", None))


@without_collectives("Y")
def a_reshard_that_gathers_in_a_jit(x):
    return jax.jit(lambda x: reshard(x, P("X", None)))(x)


@without_collectives("X")
def a_reshard_that_gathers_another_axis(x):
    return reshard(x, P("X", None))


@without_collectives("X", "Y")
def a_transpose(x):
    return x.T, jax.jit(jnp.transpose)(x)


@without_collectives("X")
def a_reshard_that_moves_an_axis(x):
    return reshard(x, P("Y", "X"))


@without_collectives("X")
def a_psum_in_a_shard_map(x):
    return jax.shard_map(lambda x: lax.psum(x, "X"), out_specs=P(None, "Y"))(x)


@without_collectives("X")
def a_psum_over_another_axis_in_a_shard_map(x):
    return jax.jit(jax.shard_map(lambda x: lax.psum(x, "Y"), out_specs=P("X", None)))(x)


@without_collectives("X")
def an_all_gather_in_a_jitted_shard_map(x):
    return jax.jit(jax.shard_map(lambda x: lax.all_gather(x, "X"), out_specs=P("X", None, "Y")))(x)


@without_collectives("X")
def the_coordinate_of_a_device(x):
    return jax.shard_map(lambda x: x + lax.axis_index("X"), out_specs=P("X", "Y"))(x)


@without_collectives("X")
def a_gradient_that_adds_over_devices(x):
    weight = jax.device_put(np.ones(8, np.float32), P("Y"))
    gradient = jax.vjp(lambda w: x * w[None, :], weight)[1]
    return gradient(x)


@without_collectives("X")
def a_program_traced_before(x):
    with no_collectives(set()):
        double_sum = jax.jit(lambda x: 2 * x.sum(0))
        double_sum(x)
    return double_sum(x)
