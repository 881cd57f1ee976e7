# WA: total bytes divided by the device count, as if no parameter was replicated
import math

import jax.numpy as jnp

MOMENTS = {"sgd": 0, "momentum": 1, "adam": 2}


def fits(params, mesh_shape, spec, hbm_bytes, optimizer):
    """Return whether parameters, gradients and optimizer state fit on each device."""
    required_bytes = 0
    for shape, dtype in params.values():
        elements = math.prod(shape) / math.prod(mesh_shape.values())
        required_bytes += elements * (2 * jnp.dtype(dtype).itemsize + 4 * MOMENTS[optimizer])
    return required_bytes <= hbm_bytes


def mesh_axes(spec):
    for entry in spec:
        if entry is not None:
            yield from (entry,) if isinstance(entry, str) else entry
