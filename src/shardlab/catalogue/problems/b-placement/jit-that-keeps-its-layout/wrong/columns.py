# SHARD: the result is sharded by columns
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec


def scale(x, mesh):
    columns = NamedSharding(mesh, PartitionSpec(None, mesh.axis_names[0]))
    return jax.jit(lambda x: x / jnp.max(jnp.abs(x)), out_shardings=columns)(x)
