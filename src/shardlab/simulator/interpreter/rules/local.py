"""Primitives that do not communicate: the same operation, with the device axes carried along.

Three ways, cheapest first:

1. Elementwise primitives need all operands in one order of dims and are then bound unchanged.
2. A few structural ones (reshape, transpose, broadcast, reductions) compute where each device axis
   goes, so that no data moves.
3. Everything else goes through JAX's own batching rule, once per device axis. The resulting jaxpr
   is cached, because tracing it costs far more than evaluating it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from jax import lax

from shardlab import _jax
from shardlab.simulator.interpreter.rules.dot_general import multiply_stacked
from shardlab.simulator.interpreter.stacked_array import (
    Dim,
    MeshAxes,
    StackedArray,
    arrange_dims,
    broadcast_over,
    full_shape,
)

LocalRule = Callable[[MeshAxes, Any, dict[str, Any], list[StackedArray]], list[StackedArray]]

# Parameters that pin a result to a mesh: the simulation runs without one.
_PLACEMENT = ("sharding", "out_sharding")


def apply_local(
    axes: MeshAxes, primitive: Any, params: dict[str, Any], ins: list[StackedArray]
) -> list[StackedArray]:
    """Return the outputs of a primitive that does not communicate."""
    params = strip_placement(params)
    # Replicated operands: the program as it is, computed once for all devices.
    if not any(value.device_axes for value in ins):
        outs = _jax.bind_primitive(primitive, [value.array for value in ins], params)
        return [StackedArray(out) for out in outs]
    rule = STRUCTURAL.get(primitive.name)
    if rule is not None:
        return rule(axes, primitive, params, ins)
    if is_elementwise(primitive):
        return apply_elementwise(axes, primitive, params, ins)
    return apply_batched(axes, primitive, params, ins)


def strip_placement(params: dict[str, Any]) -> dict[str, Any]:
    """Return `params` without shardings, and with callbacks called once per device."""
    if not any(key in params for key in (*_PLACEMENT, "vmap_method")):
        return params
    plain = {key: None if key in _PLACEMENT else value for key, value in params.items()}
    if "vmap_method" in plain:
        # Batching over a device axis must call the host function per device, as devices do.
        plain["vmap_method"] = "sequential"
    return plain


# ------------------------------------------------------------------------------- elementwise

# Elementwise, but with a batching rule of their own, so that JAX does not register them as such.
_ALSO_ELEMENTWISE = frozenset(
    {"select_n", "clamp", "add_any", "copy", "copy_p", "convert_element_type"}
)


@functools.cache
def is_elementwise(primitive: Any) -> bool:
    return primitive.name in _ALSO_ELEMENTWISE or _jax.is_elementwise(primitive)


def apply_elementwise(
    axes: MeshAxes, primitive: Any, params: dict[str, Any], ins: list[StackedArray]
) -> list[StackedArray]:
    """Arrange all operands like the one with the most device axes, then bind once."""
    lead = max(ins, key=lambda value: (len(value.device_axes), value.array.ndim))
    local_ndim = max(value.local_ndim for value in ins)
    names = axes.in_mesh_order(n for value in ins for n in value.device_axes)
    dims: tuple[Dim, ...] = (*(n for n in names if n not in lead.device_axes), *lead.dims)
    dims += tuple(range(lead.local_ndim, local_ndim))
    local_shape = next(value.local_shape for value in ins if value.local_ndim == local_ndim)
    # A scalar beside arrays (the predicate of select_n, the bounds of clamp) is legal as it is.
    is_scalar = [local_ndim > 0 and value.array.ndim == 0 for value in ins]
    arrays = [
        value.array
        if scalar
        else arrange_dims(value, dims, _operand_shape(axes, value, dims, local_shape))
        for value, scalar in zip(ins, is_scalar, strict=True)
    ]
    outs = _jax.bind_primitive(primitive, arrays, params)
    return [StackedArray.from_dims(out, dims) for out in outs]


def _operand_shape(
    axes: MeshAxes, value: StackedArray, dims: Sequence[Dim], local_shape: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the shape of `value` in `dims`: local dims of size 1 beside larger ones stay so."""
    is_full_rank = value.local_ndim == len(local_shape)
    return full_shape(dims, value.local_shape if is_full_rank else local_shape, axes)


# -------------------------------------------------------------------------------- structural


def _transpose_rule(
    axes: MeshAxes, primitive: Any, params: Any, ins: list[StackedArray]
) -> list[StackedArray]:
    """A device axis moves with the local dim that follows it: it was split off that dim."""
    (value,) = ins
    # positions of the device axes before each local dim, and of the dim itself
    groups: dict[int, list[int]] = {}
    pending: list[int] = []
    for position, dim in enumerate(value.dims):
        pending.append(position)
        if isinstance(dim, int):
            groups[dim], pending = pending, []
    order = [p for local_dim in params["permutation"] for p in groups[local_dim]] + pending
    dims = _renumber_local_dims([value.dims[p] for p in order])
    return [StackedArray.from_dims(lax.transpose(value.array, order), dims)]


def _renumber_local_dims(dims: Sequence[Dim]) -> list[Dim]:
    """Number the local dims by their new order."""
    local = iter(range(len(dims)))
    return [dim if isinstance(dim, str) else next(local) for dim in dims]


def _broadcast_in_dim_rule(
    axes: MeshAxes, primitive: Any, params: Any, ins: list[StackedArray]
) -> list[StackedArray]:
    """A device axis stays in front of the local dim that follows it."""
    value, *_ = ins
    out_dim_of = params["broadcast_dimensions"]
    before: dict[int, list[str]] = {}
    pending: list[str] = []
    for dim in value.dims:
        if isinstance(dim, str):
            pending.append(dim)
        elif pending:
            before[out_dim_of[dim]], pending = pending, []
    dims: list[Dim] = []
    for out_dim in range(len(params["shape"])):
        dims += [*before.get(out_dim, ()), out_dim]
    # Trailing device axes: behind the last operand dim, before any that the broadcast adds there.
    last = dims.index(out_dim_of[-1]) + 1 if out_dim_of else 0
    dims[last:last] = pending
    positions = [dims.index(out_dim_of[d] if isinstance(d, int) else d) for d in value.dims]
    shape = full_shape(dims, params["shape"], axes)
    return [StackedArray.from_dims(lax.broadcast_in_dim(value.array, shape, positions), dims)]


def _squeeze_rule(
    axes: MeshAxes, primitive: Any, params: Any, ins: list[StackedArray]
) -> list[StackedArray]:
    (value,) = ins
    removed = {d % value.local_ndim for d in params["dimensions"]} if value.local_ndim else set()
    positions = [p for p, dim in enumerate(value.dims) if dim in removed]
    dims = _renumber_local_dims([dim for dim in value.dims if dim not in removed])
    return [StackedArray.from_dims(lax.squeeze(value.array, positions), dims)]


def _expand_dims_rule(
    axes: MeshAxes, primitive: Any, params: Any, ins: list[StackedArray]
) -> list[StackedArray]:
    (value,) = ins
    out_shape = list(value.local_shape)
    for d in sorted(params["dimensions"]):
        out_shape.insert(d, 1)
    return _reshape_rule(axes, primitive, {"new_sizes": tuple(out_shape), "dimensions": None}, ins)


def _reshape_rule(
    axes: MeshAxes, primitive: Any, params: Any, ins: list[StackedArray]
) -> list[StackedArray]:
    """Keep a device axis in place if its position is a boundary between dims of both shapes.

    Reshaping f32[2@data, 6, 4] to local (24,) or (2, 3, 4) keeps `data` in front; for local
    (24,) from f32[6, 2@data, 4] the boundary after 6 elements does not exist, so `data` moves
    to the front first, which is the one transpose a reshape can cost.
    """
    value, *_ = ins
    new_shape = tuple(params["new_sizes"])
    # Products of dims do not identify a boundary if a dim is 0.
    if params.get("dimensions") is not None or 0 in value.array.shape:
        return apply_batched(axes, primitive, params, ins)
    boundaries = shared_boundaries(value.local_shape, new_shape)
    before: dict[int, list[str]] = {}
    front: list[str] = []
    n_local_before = 0
    for dim in value.dims:
        if isinstance(dim, int):
            n_local_before = dim + 1
        elif n_local_before in boundaries:
            before.setdefault(boundaries[n_local_before], []).append(dim)
        else:
            front.append(dim)
    if front:
        dims = (*front, *(dim for dim in value.dims if dim not in front))
        value = StackedArray.from_dims(arrange_dims(value, dims, value.array.shape), dims)
    out_dims: list[Dim] = list(front)
    for out_dim in range(len(new_shape) + 1):
        out_dims += before.get(out_dim, ())
        out_dims += [out_dim] if out_dim < len(new_shape) else []
    shape = full_shape(out_dims, new_shape, axes)
    return [StackedArray.from_dims(lax.reshape(value.array, shape), out_dims)]


@functools.cache
def shared_boundaries(old: tuple[int, ...], new: tuple[int, ...]) -> dict[int, int]:
    """Return {number of old dims in front: number of new dims in front} at shared boundaries.

    A boundary is shared if the products of the dims in front agree. Among several candidates with
    the same product (dims of size 1) the nearest in number is taken.
    """

    def cumulative_products(shape: tuple[int, ...]) -> list[int]:
        out = [1]
        for size in shape:
            out.append(out[-1] * size)
        return out

    new_products = cumulative_products(new)
    shared: dict[int, int] = {}
    for i, product in enumerate(cumulative_products(old)):
        matches = [j for j, p in enumerate(new_products) if p == product]
        if matches:
            # The dims behind agree too, because the totals do.
            shared[i] = max(matches) if i == len(old) else min(matches, key=lambda j: abs(j - i))
    return _drop_crossing(shared)


def _drop_crossing(shared: dict[int, int]) -> dict[int, int]:
    """Drop boundaries that would cross an earlier one (only possible among dims of size 1)."""
    out: dict[int, int] = {}
    last = 0
    for i in sorted(shared):
        if shared[i] >= last:
            out[i] = last = shared[i]
    return out


def _reduce_rule(
    axes: MeshAxes, primitive: Any, params: Any, ins: list[StackedArray]
) -> list[StackedArray]:
    """Reduce local dims in place; device axes stay."""
    if len(ins) != 1:
        return apply_batched(axes, primitive, params, ins)
    (value,) = ins
    removed = set(params["axes"])
    positions = tuple(p for p, dim in enumerate(value.dims) if dim in removed)
    dims = _renumber_local_dims([dim for dim in value.dims if dim not in removed])
    outs = _jax.bind_primitive(primitive, [value.array], {**params, "axes": positions})
    return [StackedArray.from_dims(out, dims) for out in outs]


def _apply_per_device(
    axes: MeshAxes, primitive: Any, params: Any, ins: list[StackedArray]
) -> list[StackedArray]:
    """Run device by device, in a loop: for what JAX cannot batch, or batches to something else."""
    names = axes.in_mesh_order(n for value in ins for n in value.device_axes)
    rows = []
    for value in ins:
        value = broadcast_over(value, names, axes)
        dims: tuple[Dim, ...] = (*names, *value.local_dims)
        array = arrange_dims(value, dims, value.array.shape)
        rows.append(array.reshape((-1, *array.shape[len(names) :])))
    outs = lax.map(lambda row: _jax.bind_primitive(primitive, row, params), rows)
    sizes = tuple(axes.sizes[n] for n in names)
    return [
        StackedArray.from_dims(
            out.reshape((*sizes, *out.shape[1:])), (*names, *range(out.ndim - 1))
        )
        for out in outs
    ]


def _random_rule(
    axes: MeshAxes, primitive: Any, params: Any, ins: list[StackedArray]
) -> list[StackedArray]:
    """Draw from random keys.

    The batching rule of "rbg" keys draws one long stream from the first key, so its numbers differ
    from those of each device's own key. Threefry draws the same numbers batched or not.
    """
    if "rbg" in str(ins[0].array.dtype):
        return _apply_per_device(axes, primitive, params, ins)
    return apply_batched(axes, primitive, params, ins)


_REDUCERS = (
    "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin"
)

STRUCTURAL: dict[str, LocalRule] = {
    "dot_general": multiply_stacked,
    "transpose": _transpose_rule,
    "broadcast_in_dim": _broadcast_in_dim_rule,
    "squeeze": _squeeze_rule,
    "expand_dims": _expand_dims_rule,
    "reshape": _reshape_rule,
    "rng_bit_generator": _apply_per_device,
    **dict.fromkeys(("random_bits", "random_split", "random_fold_in"), _random_rule),
    **dict.fromkeys(_REDUCERS.split(), _reduce_rule),
}

# ---------------------------------------------------------------------- JAX's batching rules


def apply_batched(
    axes: MeshAxes, primitive: Any, params: dict[str, Any], ins: list[StackedArray]
) -> list[StackedArray]:
    """Apply JAX's own batching rule once for each device axis."""
    names = axes.in_mesh_order(n for value in ins for n in value.device_axes)
    avals = tuple(_jax.aval_of(value.array) for value in ins)
    positions = tuple(tuple(sorted(value.device_axes.items())) for value in ins)
    sizes = tuple((name, axes.sizes[name]) for name in names)
    try:
        closed, out_axes = _batched_jaxpr(primitive, _ParamsKey(params), avals, positions, sizes)
    except NotImplementedError:
        # No batching rule: some cases of ragged_dot, and primitives of other packages.
        return _apply_per_device(axes, primitive, params, ins)
    arrays = _jax.eval_jaxpr(closed, [value.array for value in ins])
    return [
        StackedArray(array, dict(device_axes))
        for array, device_axes in zip(arrays, out_axes, strict=True)
    ]


class _ParamsKey:
    """Parameters of a primitive as a cache key; unhashable values are compared by identity."""

    __slots__ = ("_key", "params")

    def __init__(self, params: dict[str, Any]) -> None:
        self.params = params
        self._key = tuple((name, _hashable(params[name])) for name in sorted(params))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ParamsKey) and self._key == other._key


def _hashable(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        # The cache entry keeps `params` alive, so the id cannot be reused while it exists.
        return ("id", id(value))
    # With the type: True == 1 == 1.0, but they are different parameters.
    return (type(value), value)


# One entry per (primitive, params, shapes, device axes). A program has few distinct ones, but each
# costs a trace and one batching pass per device axis, so a new trace of the program reuses them.
@functools.lru_cache(maxsize=4096)
def _batched_jaxpr(
    primitive: Any,
    params: _ParamsKey,
    avals: tuple[Any, ...],
    positions: tuple[tuple[tuple[str, int], ...], ...],
    sizes: tuple[tuple[str, int], ...],
) -> tuple[Any, list[dict[str, int]]]:
    """Return the batched primitive as a closed jaxpr, and the device axes of each output."""
    local_avals = [_local_aval(aval, axes) for aval, axes in zip(avals, positions, strict=True)]
    closed = _jax.trace_plain(
        lambda *args: _jax.bind_primitive(primitive, args, params.params), local_avals
    )
    out_axes: list[dict[str, int]] = []
    added: set[str] = set()
    for name, size in sizes:
        added.add(name)
        in_dims = tuple(_position_among(dict(axes), name, added) for axes in positions)
        closed, out_dims = _jax.batch_jaxpr(closed, size, in_dims)
        out_axes = out_axes or [{} for _ in out_dims]
        out_axes = [
            _insert_device_axis(axes, name, dim)
            for axes, dim in zip(out_axes, out_dims, strict=True)
        ]
    return closed, out_axes


def _local_aval(aval: Any, device_axes: tuple[tuple[str, int], ...]) -> Any:
    """Return the type that one device sees."""
    positions = {position for _, position in device_axes}
    shape = tuple(n for p, n in enumerate(aval.shape) if p not in positions)
    return _jax.plain_aval(shape, aval.dtype, getattr(aval, "weak_type", False))


def _position_among(device_axes: dict[str, int], name: str, added: set[str]) -> int | None:
    """Return the position of `name` in the array with only the device axes `added` so far."""
    if name not in device_axes:
        return None
    missing = [p for n, p in device_axes.items() if n not in added]
    return device_axes[name] - sum(p < device_axes[name] for p in missing)


def _insert_device_axis(device_axes: dict[str, int], name: str, dim: int | None) -> dict[str, int]:
    """Return the positions after a device axis for `name` was inserted at `dim`."""
    if dim is None:
        return device_axes
    return {**{n: p + (p >= dim) for n, p in device_axes.items()}, name: dim}
