# VMA: the sum of one shard is declared replicated, and JAX cannot prove it
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec


def shard_map_psum(x, mesh=None):
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    axis = mesh.axis_names[0]
    return jax.shard_map(
        jnp.sum, mesh=mesh, in_specs=PartitionSpec(axis), out_specs=PartitionSpec()
    )(x)
