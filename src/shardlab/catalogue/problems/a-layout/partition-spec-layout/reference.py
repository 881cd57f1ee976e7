"""Draw inputs from a seed and compute the expected result in plain NumPy."""

import math

import numpy as np

from shardlab import Spec
from shardlab.catalogue.drawing import draw_mesh_shape, draw_size, draw_spec, shard_counts


def inputs(draw):
    n = 1 if draw.number == 1 else int(draw.rng.integers(2, 4 ** (1 + draw.scale)))
    # Of any magnitude, also larger than a bfloat16 represents exactly.
    kernel_in, shard_out = draw.rng.integers(1, 10 ** draw.rng.integers(1, 2 + draw.scale, 2))
    if draw.number == 3:  # the largest that the statement allows
        kernel_in, shard_out = draw.rng.integers(1 << 23, (1 << 24) + 1, 2)
    kernel_in, shard_out = int(kernel_in), int(shard_out)
    return {
        "num_devices": n,
        # Sometimes the dimension that is not sharded is divisible too.
        "kernel_in": kernel_in * n if draw.number == 2 else kernel_in,
        "kernel_out": n * shard_out,
    }


def accepts(mesh, num_devices, kernel_in, kernel_out):
    if min(num_devices, kernel_in, kernel_out) < 1 or kernel_out % num_devices:
        return False
    return max(kernel_in, kernel_out // num_devices) <= 1 << 24


def expected(mesh, num_devices, kernel_in, kernel_out):
    return np.array([kernel_in, kernel_out // num_devices], np.float32)


def inputs_2(draw):
    if draw.number == 0:
        return _tuple_of_names(draw)
    if draw.number == 1:
        return _product_does_not_divide(draw)
    if draw.number == 2:
        mesh_shape = {"data": 1 + draw_size(draw), "model": draw_size(draw)}
        return _inputs_2(draw, int(draw.rng.integers(2, 5)), Spec("data"), mesh_shape)
    if draw.number in (3, 4, 5, 6):
        return _four_dimensions(draw)
    if draw.number in (7, 8):
        return _fewer_elements_than_devices(draw)
    if draw.number in (9, 10):
        return _three_names(draw)
    if 11 <= draw.number < 15:
        return _six_dimensions(draw)
    rank = int(draw.rng.integers(0, 5))
    mesh_shape = draw_mesh_shape(draw, n_axes=int(draw.rng.integers(1, 5)), max_size=9)
    arguments = _inputs_2(draw, rank, draw_spec(draw, rank, mesh_shape), mesh_shape)
    if draw.rng.random() < 0.3:
        return _make_indivisible(draw, arguments)
    return arguments


def accepts_2(mesh, shape, spec, mesh_shape):
    return min((*shape, *mesh_shape.values()), default=1) >= 1 and len(spec) <= len(shape)


def expected_2(mesh, shape, spec, mesh_shape):
    counts = shard_counts(spec, len(shape), mesh_shape)
    if any(size % count for size, count in zip(shape, counts, strict=True)):
        raise ValueError("a dimension is not divisible by its shard count")
    return tuple(size // count for size, count in zip(shape, counts, strict=True))


def _inputs_2(draw, rank, spec, mesh_shape):
    counts = shard_counts(spec, rank, mesh_shape)
    shape = tuple(count * draw_size(draw) for count in counts)
    return {"shape": shape, "spec": spec, "mesh_shape": mesh_shape}


def _tuple_of_names(draw):
    """Two names on one dimension, both of a mesh axis with several devices."""
    names = draw.rng.permutation(["data", "model", "pod"]).tolist()
    mesh_shape = {name: int(draw.rng.integers(2, 5)) for name in names}
    entries = draw.rng.permutation([0, 1])
    spec = Spec(*[(None, tuple(names[:2]))[entry] for entry in entries])
    return _inputs_2(draw, 3, spec, mesh_shape)


def _fewer_elements_than_devices(draw):
    """A dimension of fewer elements than shards, on one mesh axis and on a tuple of two."""
    mesh_shape = {"model": int(draw.rng.integers(3, 9)), "data": int(draw.rng.integers(2, 5))}
    names = ("model",) if draw.number == 7 else ("data", "model")
    size = int(draw.rng.integers(1, math.prod(mesh_shape[name] for name in names)))
    is_first_dim = bool(draw.rng.integers(0, 2))
    return {
        "shape": (size, draw_size(draw)) if is_first_dim else (draw_size(draw), size),
        "spec": Spec(names) if is_first_dim else Spec(None, names),
        "mesh_shape": mesh_shape,
    }


def _three_names(draw):
    """A tuple of three mesh axes, on a dimension of a few elements and on a very large one."""
    names = draw.rng.permutation(["data", "model", "pod"]).tolist()
    mesh_shape = {name: int(draw.rng.integers(2, 5)) for name in sorted(names)}
    arguments = _inputs_2(draw, 2, Spec(None, tuple(names)), mesh_shape)
    if draw.number == 9:
        return arguments
    # Odd shards: a float32 does not represent them.
    counts = shard_counts(arguments["spec"], 2, mesh_shape)
    shape = tuple(count * ((draw_size(draw) << 32) + 1) for count in counts)
    return {**arguments, "shape": shape}


def _six_dimensions(draw):
    """Sharded dimensions after the fourth, and one after the last entry of the spec."""
    names = draw.rng.permutation(["data", "model", "pod", "x"]).tolist()
    mesh_shape = {name: int(draw.rng.integers(2, 5)) for name in sorted(names)}
    spec = Spec(names[0], None, None, names[1], (names[2], names[3]))
    counts = shard_counts(spec, 6, mesh_shape)
    shape = tuple(count * size for count, size in zip(counts, _draw_sizes(draw, 6), strict=True))
    return {"shape": shape, "spec": spec, "mesh_shape": mesh_shape}


def _draw_sizes(draw, count):
    """Return sizes from a wide range, so that no two cases have the same."""
    return draw.rng.integers(2, 100, count).tolist()


def _product_does_not_divide(draw):
    """Each of two mesh axis sizes divides the dimension, and their product does not."""
    first, second = ((2, 4), (4, 2), (2, 2), (3, 3), (4, 6))[draw.rng.integers(0, 5)]
    common = math.gcd(first, second)
    size = math.lcm(first, second) * (common * draw_size(draw) + int(draw.rng.integers(1, common)))
    other_size = draw_size(draw)
    is_first_dim = bool(draw.rng.integers(0, 2))
    return {
        "shape": (size, other_size) if is_first_dim else (other_size, size),
        "spec": Spec(("data", "x")) if is_first_dim else Spec(None, ("data", "x")),
        "mesh_shape": {"x": second, "data": first},
    }


def _four_dimensions(draw):
    """Two divisible shapes; then only the first, or only the last dimension is not divisible."""
    sizes = draw.rng.choice([2, 4, 6], 2)
    mesh_shape = {"model": int(sizes[0]), "stage": int(draw.rng.integers(1, 4)), "x": int(sizes[1])}
    arguments = _inputs_2(draw, 4, Spec("model", None, "stage", "x"), mesh_shape)
    if draw.number < 5:
        return arguments
    dim, count = (0, mesh_shape["model"]) if draw.number == 5 else (3, mesh_shape["x"])
    shape = list(arguments["shape"])
    # Twice this size would be divisible.
    shape[dim] = count * int(draw.rng.integers(0, 3)) + count // 2
    return {**arguments, "shape": tuple(shape)}


def _make_indivisible(draw, arguments):
    shape = list(arguments["shape"])
    counts = shard_counts(arguments["spec"], len(shape), arguments["mesh_shape"])
    dims = [dim for dim, count in enumerate(counts) if count > 1]
    if dims:
        dim = int(draw.rng.choice(dims))
        remainder = int(draw.rng.integers(1, counts[dim]))
        # Also less than one element for each device.
        shape[dim] = counts[dim] * int(draw.rng.integers(0, 3)) + remainder
    return {**arguments, "shape": tuple(shape)}
