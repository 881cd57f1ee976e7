# SHAPE: assumes that a block is an eighth of x
import jax
from jax.sharding import PartitionSpec as P


def block_mean(x, mesh):
    axis = mesh.axis_names[0]
    size = x.shape[0] // 8

    def body(block):
        return jax.lax.pmean(block[:size], axis)

    return jax.shard_map(body, mesh=mesh, in_specs=P(axis), out_specs=P())(x)
