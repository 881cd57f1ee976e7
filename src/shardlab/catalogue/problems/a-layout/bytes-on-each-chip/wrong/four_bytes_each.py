# WA: every element is counted as four bytes
import math

import jax.numpy as jnp


def bytes_per_device(shapes, specs, mesh_shape):
    """Return the total bytes of all arrays that each device of the mesh stores."""
    total = 0
    for name, (shape, _) in shapes.items():
        shard_count = math.prod(mesh_shape[axis] for axis in mesh_axes(specs[name]))
        total += math.prod(shape) // shard_count * 4
    return total


def mesh_axes(spec):
    for entry in spec:
        if entry is not None:
            yield from (entry,) if isinstance(entry, str) else entry
