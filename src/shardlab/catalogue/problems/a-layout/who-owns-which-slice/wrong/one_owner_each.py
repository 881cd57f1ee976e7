# SHAPE: of devices that share a slice only the first is kept
import itertools


def owners(shape, spec, mesh_shape):
    """Return {coordinate: slices}: for every device of the mesh, the slice of each array axis."""
    entries = tuple(spec) + (None,) * (len(shape) - len(spec))
    found = {}
    for coordinate in itertools.product(*map(range, mesh_shape.values())):
        at = dict(zip(mesh_shape, coordinate, strict=True))
        found[coordinate] = tuple(
            own_slice(size, entry, at, mesh_shape)
            for size, entry in zip(shape, entries, strict=True)
        )
    first = {}
    for coordinate, slices in found.items():
        first.setdefault(str(slices), (coordinate, slices))
    return dict(first.values())


def own_slice(size, entry, at, mesh_shape):
    names = () if entry is None else (entry,) if isinstance(entry, str) else entry
    block, blocks = 0, 1
    for name in names:
        block = block * mesh_shape[name] + at[name]
        blocks = blocks * mesh_shape[name]
    step = size // blocks
    return slice(block * step, (block + 1) * step)
