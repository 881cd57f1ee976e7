# WA: an array without axes is skipped, though it has one element
import math

import jax.numpy as jnp


def bytes_per_device(shapes, specs, mesh_shape):
    """Return the bytes that each device of the mesh holds of all arrays together."""
    total = 0
    for name, (shape, dtype) in shapes.items():
        if not shape:
            continue
        cuts = math.prod(mesh_shape[axis] for axis in mesh_axes(specs[name]))
        total += math.prod(shape) // cuts * jnp.dtype(dtype).itemsize
    return total


def mesh_axes(spec):
    for entry in spec:
        if entry is not None:
            yield from (entry,) if isinstance(entry, str) else entry
