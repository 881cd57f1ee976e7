"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import itertools
import math

from shardlab import Spec

_CASES = (
    (Spec("data", "model"), {"data": 2, "model": 3}),
    (Spec(None, "data"), {"data": 2, "model": 3}),
    (Spec(("data", "model"), None), {"data": 2, "model": 3}),
    (Spec(("model", "data"), None), {"data": 2, "model": 3}),
    (Spec(), {"data": 2, "model": 2}),
    (Spec("model"), {"data": 4, "model": 2}),
    (Spec(None, ("model", "data")), {"data": 3, "model": 2}),
    (Spec(("model", "pod"), "data"), {"pod": 2, "data": 2, "model": 3}),
    (Spec("data"), {"data": 1}),
    (Spec(("pod", "data", "model")), {"model": 2, "data": 2, "pod": 3}),
)


def inputs(draw):
    spec, mesh_shape = _CASES[draw.number % len(_CASES)]
    ones = (1,) * (2 - len(spec.axes))
    counts = (*(math.prod(mesh_shape[name] for name in names) for names in spec.axes), *ones)
    shard_sizes = draw.rng.permutation([2, 3]) + draw.scale - 1
    shape = tuple(int(count * size) for count, size in zip(counts, shard_sizes, strict=True))
    return {"shape": shape, "spec": spec, "mesh_shape": mesh_shape}


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
