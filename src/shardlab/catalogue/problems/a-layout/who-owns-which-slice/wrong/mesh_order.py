# WA: a tuple of names is read in mesh order, so (model, data) becomes (data, model)
import itertools


def owners(shape, spec, mesh_shape):
    """Return {coordinate: slices}: for every device of the mesh, the slice of each dimension."""
    entries = tuple(spec) + (None,) * (len(shape) - len(spec))
    slices_by_device = {}
    for coordinate in itertools.product(*map(range, mesh_shape.values())):
        coordinates = dict(zip(mesh_shape, coordinate, strict=True))
        slices_by_device[coordinate] = tuple(
            device_slice(size, entry, coordinates, mesh_shape)
            for size, entry in zip(shape, entries, strict=True)
        )
    return slices_by_device


def device_slice(size, entry, coordinates, mesh_shape):
    names = () if entry is None else (entry,) if isinstance(entry, str) else entry
    names = [name for name in mesh_shape if name in names]
    block, blocks = 0, 1
    for name in names:
        block = block * mesh_shape[name] + coordinates[name]
        blocks = blocks * mesh_shape[name]
    step = size // blocks
    return slice(block * step, (block + 1) * step)
