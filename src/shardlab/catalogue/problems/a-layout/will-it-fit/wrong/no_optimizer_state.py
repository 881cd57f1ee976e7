# WA: parameters and gradients are counted, the moments are not
import math

import jax.numpy as jnp

MOMENTS = {"sgd": 0, "momentum": 1, "adam": 2}


def fits(params, mesh_shape, spec, hbm_bytes, optimizer):
    """Return whether parameters, gradients and optimizer state fit on each device."""
    need = 0
    for name, (shape, dtype) in params.items():
        cuts = math.prod(mesh_shape[axis] for axis in mesh_axes(spec[name]))
        elements = math.prod(shape) // cuts
        need += elements * 2 * jnp.dtype(dtype).itemsize
    return need <= hbm_bytes


def mesh_axes(spec):
    for entry in spec:
        if entry is not None:
            yield from (entry,) if isinstance(entry, str) else entry
