# HANG: a loop that runs as often as a device is active meets its psum on some devices only
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def masked_sum(x, active, mesh):
    axis = mesh.axis_names[0]

    def body(piece, flag):
        times = flag[0].astype(jnp.int32)
        return jax.lax.fori_loop(
            0, times, lambda i, total: jax.lax.psum(jnp.sum(piece), axis), jnp.float32(0)
        )

    return jax.shard_map(
        body, mesh=mesh, in_specs=(P(axis), P(axis)), out_specs=P(), check_vma=False
    )(x, active)
