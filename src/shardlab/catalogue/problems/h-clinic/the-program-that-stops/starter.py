import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def masked_sum(x, active, mesh):
    """Return the sum of the shards of all active devices, the same on every device."""
    axis = mesh.axis_names[0]

    def body(shard, flag):
        # Only active devices have something to add, so only they call the psum.
        return jax.lax.cond(
            flag[0],
            lambda: jax.lax.psum(jnp.sum(shard), axis),
            lambda: jnp.float32(0),
        )

    return jax.shard_map(body, mesh=mesh, in_specs=(P(axis), P(axis)), out_specs=P())(x, active)
