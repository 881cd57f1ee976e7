import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def moe(x, gate, w, capacity, mesh):
    """Return each token after its best expert, weighted; 0 where the expert had no room."""
    axis = mesh.axis_names[0]
    n = mesh.shape[axis]
    # A buffer of [n, capacity, width]: row e is what this device sends to expert e.
    raise NotImplementedError
