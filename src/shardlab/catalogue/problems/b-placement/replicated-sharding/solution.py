import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def replicated_sharding_value(x, mesh=None):
    """Place a full copy of x on every device and return its sum."""
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    # A replicated array is still one array: same number of elements, same sum.
    return jnp.sum(replicate(x, mesh))


def replicate(x, mesh):
    """Return x replicated: a full copy on every device of the mesh."""
    # No entry names a mesh axis: nothing is sharded, so each device holds the full array.
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec()))
