"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import itertools

from shardlab import Spec
from shardlab.catalogue.drawing import draw_mesh_shape, draw_size, draw_spec, shard_counts


def inputs(draw):
    rank = int(draw.rng.integers(0, 4))
    mesh_shape = draw_mesh_shape(draw, n_axes=int(draw.rng.integers(1, 4)), max_size=3)
    spec = draw_spec(draw, rank, mesh_shape)
    if draw.number < 4:
        # A tuple of names, in mesh order and in the other order, and one mesh axis that the spec
        # omits: all of them with more than one device.
        rank = 2
        first, second, third = draw.rng.permutation(["data", "model", "pod"]).tolist()
        mesh_shape = {first: 2, second: 3, third: 2}
        names = (first, second) if draw.number % 2 else (second, first)
        spec = Spec(names) if draw.rng.integers(0, 2) else Spec(None, names)
    elif draw.number < 7:  # three dimensions: all of them sharded, or all but the last
        rank, mesh_shape = 3, {"x": 3, "data": 3, "pod": 3}
        names = draw.rng.permutation(list(mesh_shape)).tolist()
        spec = Spec(*names[: 2 if draw.number == 6 else 3])
    elif draw.number < 10:  # a tuple of three names, each time in another order than the mesh
        first, second, third = draw.rng.permutation(["data", "model", "pod"]).tolist()
        mesh_shape = {first: 2, second: 3, third: 2}
        orders = (third, second, first), (first, third, second), (second, first, third)
        names = orders[draw.number - 7]
        rank, spec = 2, Spec(names) if draw.rng.integers(0, 2) else Spec(None, names)
    elif draw.number < 15:  # four mesh axes, and six dimensions, each of them sharded and not
        names = draw.rng.permutation(["data", "model", "pod", "x"]).tolist()
        mesh_shape = dict.fromkeys(names, 2)
        first, second, third, fourth = draw.rng.permutation(names).tolist()
        entries = [None, first, None, fourth, (third, second), None]
        rank, spec = 6, Spec(*entries[draw.number - 10 :], *entries[: draw.number - 10])
    counts = shard_counts(spec, rank, mesh_shape)
    shape = tuple(count * draw_size(draw) for count in counts)
    if draw.number == 9:  # more elements than an int32 counts
        shape = tuple(size << 32 for size in shape)
    return {"shape": shape, "spec": spec, "mesh_shape": mesh_shape}


def accepts(mesh, shape, spec, mesh_shape):
    counts = shard_counts(spec, len(shape), mesh_shape)
    return all(size >= 1 and size % count == 0 for size, count in zip(shape, counts, strict=True))


def expected(mesh, shape, spec, mesh_shape):
    axes = (*spec.axes, *((),) * (len(shape) - len(spec.axes)))
    slices_by_device = {}
    for coordinate in itertools.product(*map(range, mesh_shape.values())):
        coordinates = dict(zip(mesh_shape, coordinate, strict=True))
        slices_by_device[coordinate] = tuple(
            _device_slice(size, names, coordinates, mesh_shape)
            for size, names in zip(shape, axes, strict=True)
        )
    return slices_by_device


def _device_slice(size, names, coordinates, mesh_shape):
    block, blocks = 0, 1
    for name in names:
        block, blocks = block * mesh_shape[name] + coordinates[name], blocks * mesh_shape[name]
    step = size // blocks
    return slice(block * step, (block + 1) * step)
