# WA: device i takes every n-th id, as cards are dealt; out_specs puts blocks together
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def global_ids(n, mesh):
    axis = mesh.axis_names[0]
    count = mesh.shape[axis]
    return jax.shard_map(
        lambda: jax.lax.axis_index(axis) + count * jnp.arange(n // count, dtype=jnp.int32),
        mesh=mesh,
        in_specs=(),
        out_specs=PartitionSpec(axis),
    )()
