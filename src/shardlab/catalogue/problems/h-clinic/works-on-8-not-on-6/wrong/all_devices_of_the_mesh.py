# WA divided_by_n: divides by all devices of the mesh, not by the size of the first mesh axis
import jax
from jax.sharding import PartitionSpec as P


def block_mean(x, mesh):
    axis = mesh.axis_names[0]

    def body(block):
        return jax.lax.psum(block, axis) / mesh.size

    return jax.shard_map(body, mesh=mesh, in_specs=P(axis), out_specs=P())(x)
