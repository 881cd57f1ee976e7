# SHAPE: of the devices that share a slice only the first is returned
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
    first_owners = {}
    for coordinate, slices in slices_by_device.items():
        first_owners.setdefault(str(slices), (coordinate, slices))
    return dict(first_owners.values())


def device_slice(size, entry, coordinates, mesh_shape):
    names = () if entry is None else (entry,) if isinstance(entry, str) else entry
    block, blocks = 0, 1
    for name in names:
        block = block * mesh_shape[name] + coordinates[name]
        blocks = blocks * mesh_shape[name]
    step = size // blocks
    return slice(block * step, (block + 1) * step)
