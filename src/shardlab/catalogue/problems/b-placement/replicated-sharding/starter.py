import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def replicated_sharding_value(x, mesh=None):
    """Place a full copy of x on every device and return its sum."""
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    raise NotImplementedError


def replicate(x, mesh):
    """Return x replicated: a full copy on every device of the mesh."""
    raise NotImplementedError
