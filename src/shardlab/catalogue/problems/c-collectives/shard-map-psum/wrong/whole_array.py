# WA factor_of_n: every device adds up all of x, and psum adds up the devices
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec


def shard_map_psum(x, mesh=None):
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    axis = mesh.axis_names[0]
    return jax.shard_map(
        lambda y: jax.lax.psum(jnp.sum(y), axis),
        mesh=mesh,
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(),
    )(x)
