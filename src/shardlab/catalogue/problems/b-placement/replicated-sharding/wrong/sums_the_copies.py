# WA factor_of_n: the copies of all devices are added up
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def replicated_sharding_value(x, mesh=None):
    """Return the sum of x, after a copy of all of x has been placed on every device."""
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    axis = mesh.axis_names[0]
    return jax.shard_map(
        lambda y: jax.lax.psum(jax.lax.pcast(jnp.sum(y), axis, to="varying"), axis),
        mesh=mesh,
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(),
    )(replicate(x, mesh))


def replicate(x, mesh):
    """Return x with a copy of all of it on every device of the mesh."""
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec()))
