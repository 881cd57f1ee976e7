# WA: the bits of an element are read from the name of its dtype, where float8_e4m3fn is 843
import math
import re


def bytes_per_device(shapes, specs, mesh_shape):
    """Return the total bytes of all arrays that each device of the mesh stores."""
    total = 0
    for name, (shape, dtype) in shapes.items():
        shard_count = math.prod(mesh_shape[axis] for axis in mesh_axes(specs[name]))
        bits = int(re.sub("[^0-9]", "", dtype) or 8)
        total += math.prod(shape) // shard_count * bits // 8
    return total


def mesh_axes(spec):
    for entry in spec:
        if entry is not None:
            yield from (entry,) if isinstance(entry, str) else entry
