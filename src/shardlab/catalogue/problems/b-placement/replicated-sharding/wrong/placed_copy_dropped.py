# SHARD: device_put returns the placed array, and x itself stays as it was
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def replicated_sharding_value(x, mesh=None):
    """Place a full copy of x on every device and return its sum."""
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    return jnp.sum(jax.device_put(x, NamedSharding(mesh, PartitionSpec())))


def replicate(x, mesh):
    """Return x replicated: a full copy on every device of the mesh."""
    jax.device_put(x, NamedSharding(mesh, PartitionSpec()))
    return x
