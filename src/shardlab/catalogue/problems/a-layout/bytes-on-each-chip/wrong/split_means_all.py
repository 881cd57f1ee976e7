# WA: an array that is split at all is divided by every device of the mesh
import math

import jax.numpy as jnp


def bytes_per_device(shapes, specs, mesh_shape):
    """Return the bytes that each device of the mesh holds of all arrays together."""
    total = 0
    for name, (shape, dtype) in shapes.items():
        is_split = any(mesh_axes(specs[name]))
        cuts = math.prod(mesh_shape.values()) if is_split else 1
        total += math.prod(shape) // cuts * jnp.dtype(dtype).itemsize
    return total


def mesh_axes(spec):
    for entry in spec:
        if entry is not None:
            yield from (entry,) if isinstance(entry, str) else entry
