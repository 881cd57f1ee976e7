# COMM: sums an array that is split, for which devices must communicate
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def replicated_sharding_value(x, mesh=None):
    """Return the sum of x, after a copy of all of x has been placed on every device."""
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    split = jax.device_put(x, NamedSharding(mesh, PartitionSpec(mesh.axis_names[0])))
    return jnp.sum(split)


def replicate(x, mesh):
    """Return x with a copy of all of it on every device of the mesh."""
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec()))
