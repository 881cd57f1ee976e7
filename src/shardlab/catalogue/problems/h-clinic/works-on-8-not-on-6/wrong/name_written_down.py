# SPEC: the mesh axis is called data in the code, and something else on the mesh
import jax
from jax.sharding import PartitionSpec as P


def block_mean(x, mesh):
    axis = "data"

    def body(block):
        return jax.lax.pmean(block, axis)

    return jax.shard_map(body, mesh=mesh, in_specs=P(axis), out_specs=P())(x)
