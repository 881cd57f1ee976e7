"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import math

from shardlab import Spec
from shardlab.catalogue.drawing import draw_mesh_shape, draw_size, draw_spec, shard_counts

_ITEM_BYTES = {"float32": 4, "bfloat16": 2}
_MOMENTS = {"sgd": 0, "momentum": 1, "adam": 2}
_FIRST_LARGE = 27  # of 36 cases
_THREE_NAMES_CASES = (6, 8, 10, 12, 14, 16)
_NAMES = ("embed", "kernel", "w", "b", "scale")


def inputs(draw):
    # Exactly enough and one byte too few separate every wrong sum from the right one. The first six
    # are every optimizer with both; in the others everything is drawn.
    model = _any_model if draw.number > 6 and draw.number % 2 else _every_kind
    if draw.number in _THREE_NAMES_CASES:
        model = _three_names
    params, spec, mesh_shape = model(draw)
    if draw.number < 6:
        optimizer, spare_bytes = list(_MOMENTS)[draw.number % 3], -(draw.number // 3)
    elif draw.number >= _FIRST_LARGE:
        # The same with gigabytes: more than an int32 counts, and finer than a float32. Without
        # 2^32 bytes, a sum that wraps around would still fit.
        params, spec = _add_table(draw, params, spec)
        number = draw.number - _FIRST_LARGE
        optimizer, spare_bytes = list(_MOMENTS)[number % 3], (0, -1, -(1 << 32))[number // 3]
    elif draw.number in _THREE_NAMES_CASES:
        optimizer = str(draw.rng.choice(list(_MOMENTS)))
        spare_bytes = -(draw.number // 2 % 2)
    else:
        optimizer = str(draw.rng.choice(list(_MOMENTS)))
        spare_bytes = int(draw.rng.choice([0, 0, 0, -1, -1, -1, 1, draw.rng.integers(-500, 500)]))
    required_bytes = _required_bytes(params, mesh_shape, spec, optimizer)
    return {
        "params": params,
        "mesh_shape": mesh_shape,
        "spec": spec,
        "hbm_bytes": max(required_bytes + spare_bytes, 0),
        "optimizer": optimizer,
    }


def accepts(mesh, params, mesh_shape, spec, hbm_bytes, optimizer):
    return all(
        size % count == 0
        for name, (shape, _) in params.items()
        for size, count in zip(shape, shard_counts(spec[name], len(shape), mesh_shape), strict=True)
    )


def expected(mesh, params, mesh_shape, spec, hbm_bytes, optimizer):
    return _required_bytes(params, mesh_shape, spec, optimizer) <= hbm_bytes


def _every_kind(draw):
    """Both dtypes; a parameter on one mesh axis, one on a tuple of them, one replicated."""
    first, second = draw.rng.permutation(["data", "model"]).tolist()
    mesh_shape = {name: int(draw.rng.integers(2, 9)) for name in (first, second)}
    spec = {
        "kernel": Spec(*draw.rng.permutation([first, None]).tolist()),
        "embed": Spec(None, (second, first)),
        "scale": Spec(),
        "heads": Spec(*draw.rng.permutation([second, None, None]).tolist()),
    }
    ranks = {"kernel": 2, "embed": 2, "scale": 1, "heads": 3}
    params = {name: _draw_param(draw, ranks[name], spec[name], mesh_shape) for name in spec}
    for name, dtype in zip(draw.rng.permutation(list(params)).tolist(), _ITEM_BYTES, strict=False):
        params[name] = (params[name][0], dtype)
    # The last parameter is a sharded one, and the replicated one, in turn.
    names = list(params)
    names = names[draw.number % 4 :] + names[: draw.number % 4]
    return {name: params[name] for name in names}, spec, mesh_shape


def _add_table(draw, params, spec):
    """Add a replicated parameter of gigabytes, at a place of its own."""
    shape = (int(draw.rng.integers(1 << 20, 1 << 22)), 1 << 12)
    items = [*params.items()]
    items.insert(int(draw.rng.integers(0, len(items) + 1)), ("table", (shape, "bfloat16")))
    return dict(items), {**spec, "table": Spec()}


def _three_names(draw):
    """A parameter on a tuple of three mesh axes, and one of five dimensions."""
    names = draw.rng.permutation(["data", "model", "pod"]).tolist()
    mesh_shape = {name: int(draw.rng.integers(2, 5)) for name in sorted(names)}
    spec = {"kernel": Spec(None, tuple(names)), "w": Spec(None, names[2], None, names[0], names[1])}
    params = {"kernel": _draw_param(draw, 2, spec["kernel"], mesh_shape)}
    # Sizes from a wide range, so that no two cases have the same.
    sizes = draw.rng.integers(2, 100, 5).tolist()
    counts = shard_counts(spec["w"], 5, mesh_shape)
    shape = tuple(count * size for count, size in zip(counts, sizes, strict=True))
    params["w"] = (shape, str(draw.rng.choice(list(_ITEM_BYTES))))
    return params, spec, mesh_shape


def _any_model(draw):
    mesh_shape = draw_mesh_shape(draw, n_axes=int(draw.rng.integers(1, 4)), max_size=9)
    params, spec = {}, {}
    for name in draw.rng.permutation(_NAMES)[: draw.rng.integers(0, 5)].tolist():
        rank = int(draw.rng.integers(0, 4))
        spec[name] = draw_spec(draw, rank, mesh_shape)
        params[name] = _draw_param(draw, rank, spec[name], mesh_shape)
    return params, spec, mesh_shape


def _draw_param(draw, rank, spec, mesh_shape):
    shape = tuple(count * draw_size(draw) for count in shard_counts(spec, rank, mesh_shape))
    return shape, str(draw.rng.choice(list(_ITEM_BYTES)))


def _required_bytes(params, mesh_shape, spec, optimizer):
    total = 0
    for name, (shape, dtype) in params.items():
        elements = math.prod(shape) // math.prod(shard_counts(spec[name], len(shape), mesh_shape))
        total += elements * (2 * _ITEM_BYTES[dtype] + 4 * _MOMENTS[optimizer])
    return total
