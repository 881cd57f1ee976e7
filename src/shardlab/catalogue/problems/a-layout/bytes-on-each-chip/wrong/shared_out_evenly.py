# WA: all bytes divided by the number of devices, as if every array was split over all of them
import math

import jax.numpy as jnp


def bytes_per_device(shapes, specs, mesh_shape):
    """Return the bytes that each device of the mesh holds of all arrays together."""
    total = 0
    for shape, dtype in shapes.values():
        cuts = math.prod(mesh_shape.values())
        total += math.prod(shape) / cuts * jnp.dtype(dtype).itemsize
    return total


def mesh_axes(spec):
    for entry in spec:
        if entry is not None:
            yield from (entry,) if isinstance(entry, str) else entry
