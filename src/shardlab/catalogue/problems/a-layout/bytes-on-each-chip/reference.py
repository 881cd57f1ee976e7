"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import math

from shardlab import Spec

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "int32": 4, "float16": 2}

# Name: smallest shape of one shard, dtype, spec.
_MODELS = (
    {"w": ((3, 5), "float32", Spec(None, "model"))},
    {"w": ((3, 5), "float32", Spec("data", "model")), "b": ((5,), "float32", Spec())},
    {"w": ((2, 3), "bfloat16", Spec("data")), "scale": ((7,), "float32", Spec())},
    {"w": ((2, 3), "int8", Spec(("data", "model"), None)), "step": ((), "int32", Spec())},
    {"embed": ((5, 2), "bfloat16", Spec(None, ("model", "data"))), "b": ((3,), "float16", Spec())},
    {"w": ((2, 3), "float32", Spec()), "b": ((3,), "float32", Spec("model"))},
    {
        "embed": ((7, 2), "bfloat16", Spec("model", "data")),
        "kernel": ((2, 3, 5), "bfloat16", Spec(None, None, "model")),
        "bias": ((5,), "float32", Spec("model")),
        "step": ((), "int32", Spec()),
    },
    {},
)


def inputs(draw):
    data, model = ((2, 4), (4, 2), (3, 5), (2, 3))[draw.number % 4]
    mesh_shape = {"data": data, "model": model}
    shapes, specs = {}, {}
    for name, (min_shape, dtype, spec) in _MODELS[draw.number % len(_MODELS)].items():
        shard_counts = _shard_counts(spec, len(min_shape), mesh_shape)
        shard_shape = [size + int(draw.rng.integers(0, 3 * draw.scale)) for size in min_shape]
        shape = tuple(count * size for count, size in zip(shard_counts, shard_shape, strict=True))
        shapes[name], specs[name] = (shape, dtype), spec
    return {"shapes": shapes, "specs": specs, "mesh_shape": mesh_shape}


def expected(mesh, shapes, specs, mesh_shape):
    total = 0
    for name, (shape, dtype) in shapes.items():
        shard_counts = _shard_counts(specs[name], len(shape), mesh_shape)
        total += math.prod(shape) // math.prod(shard_counts) * _ITEM_BYTES[dtype]
    return total


def _shard_counts(spec, rank, mesh_shape):
    shard_counts = [math.prod(mesh_shape[name] for name in names) for names in spec.axes]
    return shard_counts + [1] * (rank - len(shard_counts))
