"""Primitives that act on each device alone: the same operation, with the device axes carried along.

Three ways, cheapest first: elementwise primitives need their operands in one arrangement and are
then bound as they are; a few structural ones (reshape, transpose, broadcast) say where a device
axis goes so that no data moves; everything else goes through JAX's own batching rule, once per
device axis, and the resulting fragment is remembered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from jax import lax

from shardlab import _jax
from shardlab.simulator.interpreter.rules.dot_general import dot_general
from shardlab.simulator.interpreter.stacked_array import (
    MeshAxes,
    Slot,
    StackedArray,
    arrange_dims,
    broadcast_over,
    from_slots,
    shape_of,
)

Rule = Callable[[MeshAxes, Any, dict[str, Any], list[StackedArray]], list[StackedArray]]

# Parameters that pin a result to a mesh: in the simulation there is none.
_PLACEMENT = ("sharding", "out_sharding")


def local(
    axes: MeshAxes, primitive: Any, params: dict[str, Any], ins: list[StackedArray]
) -> list[StackedArray]:
    """Return the outputs of a primitive that does not communicate."""
    params = plain_params(params)
    if not any(value.device_axes for value in ins):
        return [
            StackedArray(out)
            for out in _jax.bind_primitive(primitive, [v.array for v in ins], params)
        ]
    rule = STRUCTURAL.get(primitive.name)
    if rule is not None:
        return rule(axes, primitive, params, ins)
    if is_elementwise(primitive):
        return elementwise(axes, primitive, params, ins)
    return batched(axes, primitive, params, ins)


def plain_params(params: dict[str, Any]) -> dict[str, Any]:
    """Return `params` without placement, and with callbacks called device by device."""
    if not any(key in params for key in (*_PLACEMENT, "vmap_method")):
        return params
    clean = {key: None if key in _PLACEMENT else value for key, value in params.items()}
    if "vmap_method" in clean:
        clean["vmap_method"] = "sequential"
    return clean


# ------------------------------------------------------------------------------- elementwise

_ALSO_ELEMENTWISE = frozenset(
    {"select_n", "clamp", "add_any", "copy", "copy_p", "convert_element_type"}
)


@functools.cache
def is_elementwise(primitive: Any) -> bool:
    return primitive.name in _ALSO_ELEMENTWISE or _jax.is_elementwise(primitive)


def elementwise(
    axes: MeshAxes, primitive: Any, params: dict[str, Any], ins: list[StackedArray]
) -> list[StackedArray]:
    """Bring all operands into the arrangement of the most spread one, then bind once."""
    lead = max(ins, key=lambda value: (len(value.device_axes), value.array.ndim))
    n_local = max(value.n_local for value in ins)
    extra = [
        n
        for n in axes.in_mesh_order(n for v in ins for n in v.device_axes)
        if n not in lead.device_axes
    ]
    slots: tuple[Slot, ...] = (*extra, *lead.slots)
    slots += tuple(range(lead.n_local, n_local))
    whole = next(v.local_shape for v in ins if v.n_local == n_local)
    # A scalar beside arrays is legal in the program itself and stays as it is.
    is_scalar = [n_local > 0 and v.array.ndim == 0 for v in ins]
    arrays = [
        v.array if scalar else arrange_dims(v, slots, _own_shape(axes, v, slots, whole))
        for v, scalar in zip(ins, is_scalar, strict=True)
    ]
    return [from_slots(out, slots) for out in _jax.bind_primitive(primitive, arrays, params)]


def _own_shape(
    axes: MeshAxes, value: StackedArray, slots: Sequence[Slot], whole: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the shape of `value` in `slots`: local axes of size 1 beside larger ones stay so."""
    return shape_of(slots, value.local_shape if value.n_local == len(whole) else whole, axes)


# -------------------------------------------------------------------------------- structural


def _transpose(
    axes: MeshAxes, primitive: Any, params: Any, ins: list[StackedArray]
) -> list[StackedArray]:
    """A device axis travels with the local axis that follows it."""
    (value,) = ins
    groups: dict[int, list[int]] = {}
    pending: list[int] = []
    for position, slot in enumerate(value.slots):
        pending.append(position)
        if isinstance(slot, int):
            groups[slot], pending = pending, []
    order = [p for local_axis in params["permutation"] for p in groups[local_axis]] + pending
    return [from_slots(lax.transpose(value.array, order), _renumber(value.slots, order))]


def _renumber(slots: Sequence[Slot], order: Sequence[int]) -> list[Slot]:
    """Return the slots in a new order, local axes numbered by where they now stand."""
    local = iter(range(len(slots)))
    return [slots[p] if isinstance(slots[p], str) else next(local) for p in order]


def _broadcast_in_dim(
    axes: MeshAxes, primitive: Any, params: Any, ins: list[StackedArray]
) -> list[StackedArray]:
    """A device axis stays in front of the local axis that follows it."""
    value, *_ = ins
    dims = params["broadcast_dimensions"]
    before: dict[int, list[str]] = {}
    pending: list[str] = []
    for slot in value.slots:
        if isinstance(slot, str):
            pending.append(slot)
        elif pending:
            before[dims[slot]], pending = pending, []
    slots: list[Slot] = []
    for out_axis in range(len(params["shape"])):
        slots += [*before.get(out_axis, ()), out_axis]
    # Behind the last mapped axis, before any axis that the broadcast adds after it.
    last = slots.index(dims[-1]) + 1 if dims else 0
    slots[last:last] = pending
    positions = [slots.index(dims[s] if isinstance(s, int) else s) for s in value.slots]
    shape = shape_of(slots, params["shape"], axes)
    return [from_slots(lax.broadcast_in_dim(value.array, shape, positions), slots)]


def _squeeze(
    axes: MeshAxes, primitive: Any, params: Any, ins: list[StackedArray]
) -> list[StackedArray]:
    (value,) = ins
    gone = {d % value.n_local for d in params["dimensions"]} if value.n_local else set()
    positions = [p for p, slot in enumerate(value.slots) if slot in gone]
    kept = [slot for slot in value.slots if slot not in gone]
    out = lax.squeeze(value.array, positions)
    return [from_slots(out, _renumber(kept, range(len(kept))))]


def _expand_dims(
    axes: MeshAxes, primitive: Any, params: Any, ins: list[StackedArray]
) -> list[StackedArray]:
    (value,) = ins
    out_shape = list(value.local_shape)
    for d in sorted(params["dimensions"]):
        out_shape.insert(d, 1)
    return _reshape(axes, primitive, {"new_sizes": tuple(out_shape), "dimensions": None}, ins)


def _reshape(
    axes: MeshAxes, primitive: Any, params: Any, ins: list[StackedArray]
) -> list[StackedArray]:
    """Keep a device axis in place where the cut before it is also a cut of the new shape."""
    value, *_ = ins
    new = tuple(params["new_sizes"])
    if params.get("dimensions") is not None or 0 in value.array.shape:
        return batched(axes, primitive, params, ins)
    boundary = shared_boundaries(value.local_shape, new)
    before: dict[int, list[str]] = {}
    front: list[str] = []
    n_seen = 0
    for slot in value.slots:
        if isinstance(slot, int):
            n_seen = slot + 1
        elif n_seen in boundary:
            before.setdefault(boundary[n_seen], []).append(slot)
        else:
            front.append(slot)
    if front:
        slots = (*front, *(slot for slot in value.slots if slot not in front))
        value = from_slots(arrange_dims(value, slots, value.array.shape), slots)
    out_slots: list[Slot] = list(front)
    for out_axis in range(len(new) + 1):
        out_slots += before.get(out_axis, ())
        out_slots += [out_axis] if out_axis < len(new) else []
    shape = shape_of(out_slots, new, axes)
    return [from_slots(lax.reshape(value.array, shape), out_slots)]


@functools.cache
def shared_boundaries(old: tuple[int, ...], new: tuple[int, ...]) -> dict[int, int]:
    """Return {number of old axes in front: number of new axes in front} where the products agree.

    Among several cuts with the same product (axes of size 1) the one nearest in number is taken.
    """

    def products(shape: tuple[int, ...]) -> list[int]:
        out = [1]
        for size in shape:
            out.append(out[-1] * size)
        return out

    new_products = products(new)
    shared: dict[int, int] = {}
    for i, product in enumerate(products(old)):
        matches = [j for j, p in enumerate(new_products) if p == product]
        if matches:
            # The axes behind must hold the same too; they do, since the totals agree.
            shared[i] = max(matches) if i == len(old) else min(matches, key=lambda j: abs(j - i))
    return _monotone(shared)


def _monotone(shared: dict[int, int]) -> dict[int, int]:
    """Drop cuts that would cross an earlier one (only possible among axes of size 1)."""
    out: dict[int, int] = {}
    last = 0
    for i in sorted(shared):
        if shared[i] >= last:
            out[i] = last = shared[i]
    return out


def _reduce(
    axes: MeshAxes, primitive: Any, params: Any, ins: list[StackedArray]
) -> list[StackedArray]:
    """Reduce local axes where they stand; device axes stay."""
    if len(ins) != 1:
        return batched(axes, primitive, params, ins)
    (value,) = ins
    gone = set(params["axes"])
    positions = tuple(p for p, slot in enumerate(value.slots) if slot in gone)
    kept = [slot for slot in value.slots if slot not in gone]
    outs = _jax.bind_primitive(primitive, [value.array], {**params, "axes": positions})
    return [from_slots(out, _renumber(kept, range(len(kept)))) for out in outs]


def _per_device(
    axes: MeshAxes, primitive: Any, params: Any, ins: list[StackedArray]
) -> list[StackedArray]:
    """Run device by device: what JAX cannot batch, or batches to something else (rbg streams)."""
    names = axes.in_mesh_order(n for v in ins for n in v.device_axes)
    rows = []
    for value in ins:
        value = broadcast_over(value, names, axes)
        slots: tuple[Slot, ...] = (*names, *value.local_slots)
        array = arrange_dims(value, slots, value.array.shape)
        rows.append(array.reshape((-1, *array.shape[len(names) :])))
    outs = lax.map(lambda row: _jax.bind_primitive(primitive, row, params), rows)
    sizes = tuple(axes.sizes[n] for n in names)
    return [
        from_slots(o.reshape((*sizes, *o.shape[1:])), (*names, *range(o.ndim - 1))) for o in outs
    ]


def _random(
    axes: MeshAxes, primitive: Any, params: Any, ins: list[StackedArray]
) -> list[StackedArray]:
    """Draw from keys: device by device where the generator's stream depends on the batch."""
    if "rbg" in str(ins[0].array.dtype):
        return _per_device(axes, primitive, params, ins)
    return batched(axes, primitive, params, ins)


_REDUCERS = (
    "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin"
)

STRUCTURAL: dict[str, Rule] = {
    "dot_general": dot_general,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast_in_dim,
    "squeeze": _squeeze,
    "expand_dims": _expand_dims,
    "reshape": _reshape,
    "rng_bit_generator": _per_device,
    **dict.fromkeys(("random_bits", "random_split", "random_fold_in"), _random),
    **dict.fromkeys(_REDUCERS.split(), _reduce),
}

# ---------------------------------------------------------------------------- JAX's batching


def batched(
    axes: MeshAxes, primitive: Any, params: dict[str, Any], ins: list[StackedArray]
) -> list[StackedArray]:
    """Apply JAX's own batching rule once for each device axis."""
    names = axes.in_mesh_order(n for value in ins for n in value.device_axes)
    avals = tuple(_jax.aval_of(value.array) for value in ins)
    places = tuple(tuple(sorted(value.device_axes.items())) for value in ins)
    sizes = tuple((name, axes.sizes[name]) for name in names)
    try:
        closed, out_at = _fragment(primitive, _Params(params), avals, places, sizes)
    except NotImplementedError:
        # JAX cannot batch this one (ragged_dot in some ways, primitives of other people).
        return _per_device(axes, primitive, params, ins)
    arrays = _jax.eval_jaxpr(closed, [value.array for value in ins])
    return [StackedArray(array, dict(at)) for array, at in zip(arrays, out_at, strict=True)]


class _Params:
    """Parameters as a cache key; what cannot be hashed is compared by identity."""

    __slots__ = ("_key", "params")

    def __init__(self, params: dict[str, Any]) -> None:
        self.params = params
        self._key = tuple((k, _hashable(params[k])) for k in sorted(params))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Params) and self._key == other._key


def _hashable(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        return ("id", id(value))
    return (type(value), value)


@functools.lru_cache(maxsize=4096)
def _fragment(
    primitive: Any,
    params: _Params,
    avals: tuple[Any, ...],
    places: tuple[tuple[tuple[str, int], ...], ...],
    sizes: tuple[tuple[str, int], ...],
) -> tuple[Any, list[dict[str, int]]]:
    """Return the batched primitive as a closed jaxpr, and where each output has its device axes."""
    local_avals = [_without(aval, place) for aval, place in zip(avals, places, strict=True)]
    closed = _jax.trace_plain(
        lambda *args: _jax.bind_primitive(primitive, args, params.params), local_avals
    )
    out_at: list[dict[str, int]] = []
    seen: set[str] = set()
    for name, size in sizes:
        seen.add(name)
        in_dims = tuple(_place_among(dict(place), name, seen) for place in places)
        closed, out_dims = _jax.batch_jaxpr(closed, size, in_dims)
        out_at = out_at or [{} for _ in out_dims]
        out_at = [_insert(at, name, dim) for at, dim in zip(out_at, out_dims, strict=True)]
    return closed, out_at


def _without(aval: Any, place: tuple[tuple[str, int], ...]) -> Any:
    gone = {position for _, position in place}
    shape = tuple(n for p, n in enumerate(aval.shape) if p not in gone)
    return _jax.plain_aval(shape, aval.dtype, getattr(aval, "weak_type", False))


def _place_among(place: dict[str, int], name: str, seen: set[str]) -> int | None:
    """Return the position of `name` in an array that has only the device axes `seen`."""
    if name not in place:
        return None
    hidden = [p for n, p in place.items() if n not in seen]
    return place[name] - sum(p < place[name] for p in hidden)


def _insert(at: dict[str, int], name: str, dim: int | None) -> dict[str, int]:
    if dim is None:
        return at
    return {**{n: p + (p >= dim) for n, p in at.items()}, name: dim}
