# WA: a size that does not divide is rounded down, where JAX refuses it
import math

import jax.numpy as jnp


def partition_spec_layout(num_devices, kernel_in, kernel_out):
    """Return [rows, columns] of one shard of a kernel laid out as PartitionSpec(None, 'model')."""
    # Array axis 0 has None and stays whole; array axis 1 has the mesh axis and is divided.
    return jnp.array([kernel_in, kernel_out // num_devices], dtype=jnp.float32)


def shard_shape(shape, spec, mesh_shape):
    """Return the shape of the piece that one device holds, as a tuple."""
    entries = tuple(spec) + (None,) * (len(shape) - len(spec))  # what a short spec leaves out
    sizes = []
    for size, entry in zip(shape, entries, strict=True):
        names = () if entry is None else (entry,) if isinstance(entry, str) else entry
        # Every mesh axis named cuts each of the parts again: the numbers multiply.
        cuts = math.prod(mesh_shape[name] for name in names)
        sizes.append(size // cuts)
    return tuple(sizes)
