"""Inputs from a seed, and the right answer in plain NumPy."""

import itertools
import math

from shardlab.layouts.spec import Spec

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
    rest = (1,) * (2 - len(spec.axes))
    cuts = (*(math.prod(mesh_shape[name] for name in names) for names in spec.axes), *rest)
    sizes = draw.rng.permutation([2, 3]) + draw.scale - 1
    shape = tuple(int(cut * size) for cut, size in zip(cuts, sizes, strict=True))
    return {"shape": shape, "spec": spec, "mesh_shape": mesh_shape}


def expected(mesh, shape, spec, mesh_shape):
    axes = (*spec.axes, *((),) * (len(shape) - len(spec.axes)))
    found = {}
    for coordinate in itertools.product(*map(range, mesh_shape.values())):
        at = dict(zip(mesh_shape, coordinate, strict=True))
        found[coordinate] = tuple(
            _slice(size, names, at, mesh_shape) for size, names in zip(shape, axes, strict=True)
        )
    return found


def _slice(size, names, at, mesh_shape):
    block, blocks = 0, 1
    for name in names:
        block, blocks = block * mesh_shape[name] + at[name], blocks * mesh_shape[name]
    step = size // blocks
    return slice(block * step, (block + 1) * step)
