# SHAPE: a spec shorter than the shape drops the dimensions that it does not name
import math

import jax.numpy as jnp


def partition_spec_layout(num_devices, kernel_in, kernel_out):
    """Return [rows, columns] of one shard of a kernel sharded as PartitionSpec(None, 'model')."""
    # Dimension 0 has None and is not sharded; dimension 1 has the mesh axis and is divided.
    return jnp.array([kernel_in, kernel_out // num_devices], dtype=jnp.float32)


def shard_shape(shape, spec, mesh_shape):
    """Return the shape of the shard that one device holds, as a tuple."""
    sizes = []
    for size, entry in zip(shape, spec, strict=False):
        names = () if entry is None else (entry,) if isinstance(entry, str) else entry
        # Each mesh axis divides the shards of the one before it, so the sizes multiply.
        shard_count = math.prod(mesh_shape[name] for name in names)
        if size % shard_count:
            raise ValueError(f"a dimension of size {size} is not divisible by {shard_count}")
        sizes.append(size // shard_count)
    return tuple(sizes)
