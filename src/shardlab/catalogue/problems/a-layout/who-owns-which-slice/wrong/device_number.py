# WA: blocks are dealt out by device number, whatever mesh axis the spec names
import itertools
import math


def owners(shape, spec, mesh_shape):
    entries = tuple(spec) + (None,) * (len(shape) - len(spec))
    found = {}
    places = itertools.product(*map(range, mesh_shape.values()))
    for number, coordinate in enumerate(places):
        found[coordinate] = tuple(
            own_slice(size, entry, number, mesh_shape)
            for size, entry in zip(shape, entries, strict=True)
        )
    return found


def own_slice(size, entry, number, mesh_shape):
    names = () if entry is None else (entry,) if isinstance(entry, str) else entry
    blocks = math.prod(mesh_shape[name] for name in names)
    block = number % blocks
    step = size // blocks
    return slice(block * step, (block + 1) * step)
