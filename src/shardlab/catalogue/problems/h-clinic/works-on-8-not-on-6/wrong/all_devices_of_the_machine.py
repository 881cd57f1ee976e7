# WA: divides by the devices of the machine, although the mesh has only some of them
import jax
from jax.sharding import PartitionSpec as P


def block_mean(x, mesh):
    axis = mesh.axis_names[0]

    def body(block):
        return jax.lax.psum(block, axis) / jax.device_count()

    return jax.shard_map(body, mesh=mesh, in_specs=P(axis), out_specs=P())(x)
