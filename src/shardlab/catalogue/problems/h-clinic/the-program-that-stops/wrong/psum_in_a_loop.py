# HANG: the loop runs only on active devices, so the others never reach its psum
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def masked_sum(x, active, mesh):
    axis = mesh.axis_names[0]

    def body(shard, flag):
        iterations = flag[0].astype(jnp.int32)
        return jax.lax.fori_loop(
            0, iterations, lambda i, total: jax.lax.psum(jnp.sum(shard), axis), jnp.float32(0)
        )

    return jax.shard_map(
        body, mesh=mesh, in_specs=(P(axis), P(axis)), out_specs=P(), check_vma=False
    )(x, active)
