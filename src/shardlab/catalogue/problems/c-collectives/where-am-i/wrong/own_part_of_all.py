# MEM: every device creates all ids, and keeps its own part of them
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def global_ids(n, mesh):
    axis = mesh.axis_names[0]
    size = n // mesh.shape[axis]

    def ids():
        start = jax.lax.axis_index(axis) * size
        return jax.lax.dynamic_slice_in_dim(jnp.arange(n, dtype=jnp.int32), start, size)

    return jax.shard_map(ids, mesh=mesh, in_specs=(), out_specs=PartitionSpec(axis))()
