"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import math

import numpy as np

from shardlab import Spec
from shardlab.catalogue.drawing import draw_mesh_shape, draw_size, draw_spec, shard_counts

_ITEM_BYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int8": 1,
    "int32": 4,
    "uint8": 1,
    "int16": 2,
    "float64": 8,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "uint32": 4,
    "int64": 8,
    "complex64": 8,
    "complex128": 16,
}
_NAMES = ("embed", "kernel", "w", "b", "scale", "step")


def inputs(draw):
    if draw.number == 0:
        return {"shapes": {}, "specs": {}, "mesh_shape": draw_mesh_shape(draw, 2)}
    if draw.number <= 2:
        return _every_kind(draw)
    if draw.number == 3:
        return _three_names(draw)
    mesh_shape = draw_mesh_shape(draw, n_axes=int(draw.rng.integers(1, 4)), max_size=9)
    shapes, specs = {}, {}
    for name in draw.rng.permutation(_NAMES)[: draw.rng.integers(1, 5)].tolist():
        rank = int(draw.rng.integers(0, 4))
        specs[name] = draw_spec(draw, rank, mesh_shape)
        shapes[name] = _draw_shape(draw, rank, specs[name], mesh_shape)
    if draw.number in (4, 5):
        # Gigabytes, then almost 2^53; and an odd number of elements: more than an int32 or a
        # float32 represents.
        low, high, shift = (5, 99, 29) if draw.number == 4 else (256, 511, 43)
        rows = int(draw.rng.integers(low, high)) << shift
        shapes["table"], specs["table"] = ((rows,), "int16"), Spec()
        shapes["mask"], specs["mask"] = (((1 << 24) + 2 * draw_size(draw) + 1,), "uint8"), Spec()
    if draw.number in (6, 7):
        shapes, specs = _every_dtype(draw, shapes, specs)
    return {"shapes": shapes, "specs": specs, "mesh_shape": mesh_shape}


def accepts(mesh, shapes, specs, mesh_shape):
    is_divisible = all(
        size % count == 0
        for name, (shape, _) in shapes.items()
        for size, count in zip(
            shape, shard_counts(specs[name], len(shape), mesh_shape), strict=True
        )
    )
    return is_divisible and expected(mesh, shapes, specs, mesh_shape) < 1 << 53


def expected(mesh, shapes, specs, mesh_shape):
    total = 0
    for name, (shape, dtype) in shapes.items():
        counts = shard_counts(specs[name], len(shape), mesh_shape)
        total += math.prod(shape) // math.prod(counts) * _ITEM_BYTES[dtype]
    return total


def _every_kind(draw):
    """A scalar, an array on some mesh axes, one on a tuple of them, one that is replicated."""
    first, second = draw.rng.permutation(["data", "model"]).tolist()
    mesh_shape = {name: int(draw.rng.integers(2, 5)) for name in (first, second)}
    specs = {
        "step": Spec(),
        "kernel": Spec(*draw.rng.permutation([first, None]).tolist()),
        "embed": Spec(None, (second, first)),
        "scale": Spec(),
        "heads": Spec(*draw.rng.permutation([second, None, None]).tolist()),
    }
    ranks = {"step": 0, "kernel": 2, "embed": 2, "scale": 1, "heads": 3}
    shapes = {
        name: _draw_shape(draw, ranks[name], spec, mesh_shape) for name, spec in specs.items()
    }
    shapes["kernel"] = (shapes["kernel"][0], "bfloat16")
    # The same shape and dtype as the kernel, but a full copy on every device.
    shapes["query"], specs["query"] = shapes["kernel"], Spec()
    return {"shapes": shapes, "specs": specs, "mesh_shape": mesh_shape}


def _three_names(draw):
    """An array on a tuple of three mesh axes, one on two of them, and one of five dimensions."""
    names = draw.rng.permutation(["data", "model", "pod"]).tolist()
    mesh_shape = {name: int(draw.rng.integers(2, 5)) for name in sorted(names)}
    specs = {"kernel": Spec(None, tuple(names)), "embed": Spec(tuple(names[1:]), names[0])}
    shapes = {name: _draw_shape(draw, 2, spec, mesh_shape) for name, spec in specs.items()}
    specs["experts"] = Spec(None, names[2], None, names[0], names[1])
    shapes["experts"] = _draw_shape(draw, 5, specs["experts"], mesh_shape)
    return {"shapes": shapes, "specs": specs, "mesh_shape": mesh_shape}


def _every_dtype(draw, shapes, specs):
    """Add an array of every dtype, each of another size and replicated."""
    sizes = draw.rng.choice(np.arange(1, 99), len(_ITEM_BYTES), replace=False).tolist()
    pairs = zip(sizes, _ITEM_BYTES, strict=True)
    arrays = {f"of_{dtype}": ((size,), dtype) for size, dtype in pairs}
    return {**shapes, **arrays}, {**specs, **dict.fromkeys(arrays, Spec())}


def _draw_shape(draw, rank, spec, mesh_shape):
    shape = tuple(count * draw_size(draw) for count in shard_counts(spec, rank, mesh_shape))
    return shape, str(draw.rng.choice(list(_ITEM_BYTES)))
