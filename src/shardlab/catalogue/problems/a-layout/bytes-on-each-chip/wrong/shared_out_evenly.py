# WA: total bytes divided by the device count, as if every array was sharded over all devices
import math

import jax.numpy as jnp


def bytes_per_device(shapes, specs, mesh_shape):
    """Return the total bytes of all arrays that each device of the mesh stores."""
    total = 0
    for shape, dtype in shapes.values():
        shard_count = math.prod(mesh_shape.values())
        total += math.prod(shape) // shard_count * jnp.dtype(dtype).itemsize
    return total


def mesh_axes(spec):
    for entry in spec:
        if entry is not None:
            yield from (entry,) if isinstance(entry, str) else entry
