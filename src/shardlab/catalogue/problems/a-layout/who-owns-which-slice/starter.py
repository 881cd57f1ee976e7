import itertools


def owners(shape, spec, mesh_shape):
    """Return {coordinate: slices}: for every device of the mesh, the slice of each dimension."""
    slices_by_device = {}
    for coordinate in itertools.product(*map(range, mesh_shape.values())):
        # As if nothing was sharded: every device owns everything.
        slices_by_device[coordinate] = tuple(slice(0, size) for size in shape)
    return slices_by_device
