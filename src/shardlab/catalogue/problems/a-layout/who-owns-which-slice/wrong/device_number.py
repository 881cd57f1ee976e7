# WA: blocks are assigned by device index, whichever mesh axis the spec names
import itertools
import math


def owners(shape, spec, mesh_shape):
    entries = tuple(spec) + (None,) * (len(shape) - len(spec))
    slices_by_device = {}
    all_coordinates = itertools.product(*map(range, mesh_shape.values()))
    for device, coordinate in enumerate(all_coordinates):
        slices_by_device[coordinate] = tuple(
            device_slice(size, entry, device, mesh_shape)
            for size, entry in zip(shape, entries, strict=True)
        )
    return slices_by_device


def device_slice(size, entry, device, mesh_shape):
    names = () if entry is None else (entry,) if isinstance(entry, str) else entry
    blocks = math.prod(mesh_shape[name] for name in names)
    block = device % blocks
    step = size // blocks
    return slice(block * step, (block + 1) * step)
