# WA factor_of_n: psum adds up the copies of all devices
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def replicated_sharding_value(x, mesh=None):
    """Place a full copy of x on every device and return its sum."""
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
    """Return x replicated: a full copy on every device of the mesh."""
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec()))
