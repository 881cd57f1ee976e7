import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def global_ids(n, mesh):
    """Return 0, 1, ..., n - 1; each device creates its own shard."""
    axis = mesh.axis_names[0]
    size = n // mesh.shape[axis]

    def ids():
        return jnp.arange(size, dtype=jnp.int32)  # the same on every device

    return jax.shard_map(ids, mesh=mesh, in_specs=(), out_specs=PartitionSpec(axis))()
