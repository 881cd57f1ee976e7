# REPL: the index counts the devices of the whole mesh, and copies of one piece differ
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def global_ids(n, mesh):
    axis = mesh.axis_names[0]
    size = n // mesh.shape[axis]
    return jax.shard_map(
        lambda: jax.lax.axis_index(mesh.axis_names) * size + jnp.arange(size, dtype=jnp.int32),
        mesh=mesh,
        in_specs=(),
        out_specs=PartitionSpec(axis),
        check_vma=False,
    )()
