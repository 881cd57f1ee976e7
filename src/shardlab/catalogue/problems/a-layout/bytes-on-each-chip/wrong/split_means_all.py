# WA: an array that is sharded at all is divided by the number of all devices of the mesh
import math

import jax.numpy as jnp


def bytes_per_device(shapes, specs, mesh_shape):
    """Return the total bytes of all arrays that each device of the mesh stores."""
    total = 0
    for name, (shape, dtype) in shapes.items():
        is_sharded = any(mesh_axes(specs[name]))
        shard_count = math.prod(mesh_shape.values()) if is_sharded else 1
        total += math.prod(shape) // shard_count * jnp.dtype(dtype).itemsize
    return total


def mesh_axes(spec):
    for entry in spec:
        if entry is not None:
            yield from (entry,) if isinstance(entry, str) else entry
