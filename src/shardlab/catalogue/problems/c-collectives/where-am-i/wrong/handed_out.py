# MEM: one device creates all ids, and shard_map distributes them
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def global_ids(n, mesh):
    spec = PartitionSpec(mesh.axis_names[0])
    ids = jnp.arange(n, dtype=jnp.int32)
    return jax.shard_map(lambda y: y, mesh=mesh, in_specs=spec, out_specs=spec)(ids)
