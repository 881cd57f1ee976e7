import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec


def shard_map_psum(x, mesh=None):
    """Return the sum of all elements of x, the same on every device."""
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    # Add up the shard of each device, then the sums of all devices.
    raise NotImplementedError
