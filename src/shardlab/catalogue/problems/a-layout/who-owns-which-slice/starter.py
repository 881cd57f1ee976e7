import itertools


def owners(shape, spec, mesh_shape):
    """Return {coordinate: slices}: for every device of the mesh, the slice of each array axis."""
    found = {}
    for coordinate in itertools.product(*map(range, mesh_shape.values())):
        # As if nothing was cut: every device owns everything.
        found[coordinate] = tuple(slice(0, size) for size in shape)
    return found
