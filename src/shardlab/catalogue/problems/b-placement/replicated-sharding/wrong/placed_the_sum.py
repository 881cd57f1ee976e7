# API: sums x where it is, and places the sum only
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def replicated_sharding_value(x, mesh=None):
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    return replicate(jnp.sum(x), mesh)


def replicate(x, mesh):
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec()))
