# SPEC: psum names a mesh axis that the mesh does not have
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec


def shard_map_psum(x, mesh=None):
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    axis = mesh.axis_names[0]
    return jax.shard_map(
        lambda y: jax.lax.psum(jnp.sum(y), "batch"),
        mesh=mesh,
        in_specs=PartitionSpec(axis),
        out_specs=PartitionSpec(),
    )(x)
