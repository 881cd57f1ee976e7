# SHAPE: a spec shorter than the shape loses the array axes that it does not name
import math

import jax.numpy as jnp


def partition_spec_layout(num_devices, kernel_in, kernel_out):
    """Return [rows, columns] of one shard of a kernel laid out as PartitionSpec(None, 'model')."""
    # Array axis 0 has None and stays whole; array axis 1 has the mesh axis and is divided.
    return jnp.array([kernel_in, kernel_out // num_devices], dtype=jnp.float32)


def shard_shape(shape, spec, mesh_shape):
    """Return the shape of the piece that one device holds, as a tuple."""
    sizes = []
    for size, entry in zip(shape, spec, strict=False):
        names = () if entry is None else (entry,) if isinstance(entry, str) else entry
        # Every mesh axis named cuts each of the parts again: the numbers multiply.
        cuts = math.prod(mesh_shape[name] for name in names)
        if size % cuts:
            raise ValueError(f"an array axis of size {size} does not split into {cuts} equal parts")
        sizes.append(size // cuts)
    return tuple(sizes)
