"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import math

from shardlab import Spec

_ITEM_BYTES = {"float32": 4, "bfloat16": 2}
_MOMENTS = {"sgd": 0, "momentum": 1, "adam": 2}
_MODELS = (
    {"w": ((3, 5), "float32", Spec("data", "model"))},
    {"w": ((3, 5), "bfloat16", Spec("data")), "b": ((5,), "float32", Spec())},
    {"w": ((2, 3), "bfloat16", Spec(None, ("data", "model"))), "b": ((4,), "bfloat16", Spec())},
)


def inputs(draw):
    mesh_shape = ({"data": 2, "model": 4}, {"data": 3, "model": 2})[draw.number % 2]
    params, spec = {}, {}
    for name, (min_shape, dtype, param_spec) in _MODELS[draw.number % 3].items():
        shard_shape = [size + int(draw.rng.integers(0, 3 * draw.scale)) for size in min_shape]
        shard_counts = _shard_counts(param_spec, len(min_shape), mesh_shape)
        shape = tuple(count * size for count, size in zip(shard_counts, shard_shape, strict=True))
        params[name], spec[name] = (shape, dtype), param_spec
    optimizer = ("adam", "momentum", "sgd", "adam")[draw.number // 3 % 4]
    required_bytes = _required_bytes(params, mesh_shape, spec, optimizer)
    # Exactly enough and one byte too few: these two separate every wrong sum from the right one.
    hbm_bytes = required_bytes - (draw.number // 2 % 2)
    return {
        "params": params,
        "mesh_shape": mesh_shape,
        "spec": spec,
        "hbm_bytes": hbm_bytes,
        "optimizer": optimizer,
    }


def expected(mesh, params, mesh_shape, spec, hbm_bytes, optimizer):
    return _required_bytes(params, mesh_shape, spec, optimizer) <= hbm_bytes


def _required_bytes(params, mesh_shape, spec, optimizer):
    total = 0
    for name, (shape, dtype) in params.items():
        shard_counts = _shard_counts(spec[name], len(shape), mesh_shape)
        elements = math.prod(shape) // math.prod(shard_counts)
        total += elements * (2 * _ITEM_BYTES[dtype] + 4 * _MOMENTS[optimizer])
    return total


def _shard_counts(spec, rank, mesh_shape):
    shard_counts = [math.prod(mesh_shape[name] for name in names) for names in spec.axes]
    return shard_counts + [1] * (rank - len(shard_counts))
