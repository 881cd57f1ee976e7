# WA: a shard_map body sees one piece, and divides by the maximum of that
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def scale(x, mesh):
    def body(piece):
        return piece / jnp.max(jnp.abs(piece))

    rows = PartitionSpec(mesh.axis_names[0])
    return jax.shard_map(body, mesh=mesh, in_specs=rows, out_specs=rows)(x)
