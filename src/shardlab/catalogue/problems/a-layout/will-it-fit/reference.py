"""Inputs from a seed, and the right answer in plain NumPy."""

import math

from shardlab.layouts.spec import Spec

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
    for name, (units, dtype, entry) in _MODELS[draw.number % 3].items():
        grown = [unit + int(draw.rng.integers(0, 3 * draw.scale)) for unit in units]
        cuts = _cuts(entry, len(units), mesh_shape)
        shape = tuple(cut * unit for cut, unit in zip(cuts, grown, strict=True))
        params[name], spec[name] = (shape, dtype), entry
    optimizer = ("adam", "momentum", "sgd", "adam")[draw.number // 3 % 4]
    need = _need(params, mesh_shape, spec, optimizer)
    # Exactly enough, and one byte too little: the two that tell every wrong sum from the right one.
    hbm_bytes = need - (draw.number // 2 % 2)
    return {
        "params": params,
        "mesh_shape": mesh_shape,
        "spec": spec,
        "hbm_bytes": hbm_bytes,
        "optimizer": optimizer,
    }


def expected(mesh, params, mesh_shape, spec, hbm_bytes, optimizer):
    return _need(params, mesh_shape, spec, optimizer) <= hbm_bytes


def _need(params, mesh_shape, spec, optimizer):
    total = 0
    for name, (shape, dtype) in params.items():
        elements = math.prod(shape) // math.prod(_cuts(spec[name], len(shape), mesh_shape))
        total += elements * (2 * _ITEM_BYTES[dtype] + 4 * _MOMENTS[optimizer])
    return total


def _cuts(spec, rank, mesh_shape):
    cuts = [math.prod(mesh_shape[name] for name in names) for names in spec.axes]
    return cuts + [1] * (rank - len(cuts))
