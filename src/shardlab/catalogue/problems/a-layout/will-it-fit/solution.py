import math

import jax.numpy as jnp

MOMENTS = {"sgd": 0, "momentum": 1, "adam": 2}


def fits(params, mesh_shape, spec, hbm_bytes, optimizer):
    """Return whether parameters, gradients and optimizer state fit on each device."""
    required_bytes = 0
    for name, (shape, dtype) in params.items():
        shard_count = math.prod(mesh_shape[axis] for axis in mesh_axes(spec[name]))
        elements = math.prod(shape) // shard_count
        # Each element needs memory for itself, its gradient, and its moments in float32.
        required_bytes += elements * (2 * jnp.dtype(dtype).itemsize + 4 * MOMENTS[optimizer])
    return required_bytes <= hbm_bytes


def mesh_axes(spec):
    for entry in spec:
        if entry is not None:
            yield from (entry,) if isinstance(entry, str) else entry
