"""Correct on one device, wrong on more: try `shardlab practice run` on it."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P


def shard_map_psum(x, mesh=None):
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    axis = mesh.axis_names[0]
    total = jax.shard_map(jnp.sum, mesh=mesh, in_specs=P(axis), out_specs=P(), check_vma=False)
    return total(x)
