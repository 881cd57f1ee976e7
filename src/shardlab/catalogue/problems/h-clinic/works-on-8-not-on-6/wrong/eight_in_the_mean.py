# WA: the sum is divided by eight, whatever the number of blocks
import jax
from jax.sharding import PartitionSpec as P


def block_mean(x, mesh):
    axis = mesh.axis_names[0]

    def body(block):
        return jax.lax.psum(block, axis) / 8

    return jax.shard_map(body, mesh=mesh, in_specs=P(axis), out_specs=P())(x)
