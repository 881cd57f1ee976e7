# REPLICAS missing_psum: check_vma is off, and each device returns its own term of the sum
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec


def shard_map_psum(x, mesh=None):
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    axis = mesh.axis_names[0]
    return jax.shard_map(
        jnp.sum, mesh=mesh, in_specs=PartitionSpec(axis), out_specs=PartitionSpec(), check_vma=False
    )(x)
