# WA only_shard_0: a device starts at its index times n, not times the shard size
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def global_ids(n, mesh):
    axis = mesh.axis_names[0]
    size = n // mesh.shape[axis]
    return jax.shard_map(
        lambda: jax.lax.axis_index(axis) * n + jnp.arange(size, dtype=jnp.int32),
        mesh=mesh,
        in_specs=(),
        out_specs=PartitionSpec(axis),
    )()
