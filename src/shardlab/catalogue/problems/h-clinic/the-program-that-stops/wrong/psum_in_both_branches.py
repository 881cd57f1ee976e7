# HANG: a psum in each branch is two collectives, and no device reaches both
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def masked_sum(x, active, mesh):
    axis = mesh.axis_names[0]

    def body(shard, flag):
        return jax.lax.cond(
            flag[0],
            lambda: jax.lax.psum(jnp.sum(shard), axis),
            lambda: jax.lax.psum(jnp.sum(0 * shard), axis),
        )

    return jax.shard_map(body, mesh=mesh, in_specs=(P(axis), P(axis)), out_specs=P())(x, active)
