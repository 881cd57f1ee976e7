# SHARD: the spec names the mesh axis, so x is split over it and not copied
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def replicated_sharding_value(x, mesh=None):
    """Return the sum of x, after a copy of all of x has been placed on every device."""
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    return jnp.sum(jax.device_put(x, NamedSharding(mesh, PartitionSpec())))


def replicate(x, mesh):
    """Return x with a copy of all of it on every device of the mesh."""
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec(mesh.axis_names[0])))
