# WA: a shard_map body sees one shard, and divides by the maximum of that shard
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def scale(x, mesh):
    def body(shard):
        return shard / jnp.max(jnp.abs(shard))

    rows = PartitionSpec(mesh.axis_names[0])
    return jax.shard_map(body, mesh=mesh, in_specs=rows, out_specs=rows)(x)
