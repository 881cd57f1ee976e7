"""Repairs: the same program with one line computed as it should be, to test what is wrong with it.

A result that depends on the mesh has a cause if changing the operation in question makes every
number right on every mesh. A `Repair` says how an operation is changed; while `apply_repairs` is
active, the interpreter evaluates the equations of that operation so.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from shardlab.simulator.interpreter.rules.local import apply_local
from shardlab.simulator.interpreter.rules.permutations import axis_index
from shardlab.simulator.interpreter.rules.reductions import pmax, psum
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray
from shardlab.simulator.repair import Repair

EvaluateEquation = Callable[[MeshAxes, Any, list[StackedArray]], list[StackedArray]]


@dataclasses.dataclass(frozen=True)
class SwitchedRepair:
    """A repair of an equation, and a traced boolean that says whether it is in effect.

    One compiled program then tests many repairs: compiling takes longer than running.
    """

    repair: Repair
    is_on: Any


_active_repairs: list[Mapping[int, Sequence[SwitchedRepair]]] = []


@contextlib.contextmanager
def apply_repairs(repairs: Mapping[int, Sequence[SwitchedRepair]]) -> Iterator[None]:
    """Evaluate equations, given by their `id`, with their repairs."""
    _active_repairs.append(repairs)
    try:
        yield
    finally:
        _active_repairs.pop()


def active_repairs(eqn: Any) -> Sequence[SwitchedRepair]:
    return _active_repairs[-1].get(id(eqn), ()) if _active_repairs else ()


def evaluate_repaired(
    repairs: Sequence[SwitchedRepair],
    axes: MeshAxes,
    eqn: Any,
    ins: list[StackedArray],
    evaluate_equation: EvaluateEquation,
) -> list[StackedArray]:
    """Evaluate one equation with those of its repairs that are switched on."""
    for item in repairs:
        if item.repair.kind == "count_once":
            scaled = _scale_repeated_term(axes, item.repair.mesh_axes, ins)
            ins = _choose(axes, item.is_on, scaled, ins)
        if item.repair.kind == "slice_offset":
            moved = _move_slice(axes, item.repair.mesh_axes, eqn, ins)
            ins = _choose(axes, item.is_on, moved, ins)
    outs = evaluate_equation(axes, eqn, ins)
    for item in repairs:
        if item.repair.kind == "reverse":
            repaired = evaluate_equation(axes, _reverse(eqn), ins)
        else:
            repaired = _repair_outputs(item.repair, axes, eqn, ins, outs)
        outs = _choose(axes, item.is_on, repaired, outs)
    return outs


def _repair_outputs(
    repair: Repair, axes: MeshAxes, eqn: Any, ins: list[StackedArray], outs: list[StackedArray]
) -> list[StackedArray]:
    n = axes.size(repair.mesh_axes)
    if repair.kind == "divide":
        return [_scale(out, 1 / n) for out in outs]
    if repair.kind == "multiply":
        return [_scale(out, n) for out in outs]
    if repair.kind == "divide_last":
        # Quotients with the same divisor on every device have the right weight in a mean.
        if not set(repair.mesh_axes) & set(ins[1].device_axes):
            return outs
        sums = [psum(axes, value, axes.drop_size_one(repair.mesh_axes)) for value in ins]
        (quotient,) = apply_local(axes, eqn.primitive, eqn.params, sums)
        return [_scale(quotient, 1 / n) if repair.is_summed else quotient]
    if repair.kind == "offset":
        return [_add_offset(axes, repair.mesh_axes, out) for out in outs]
    if repair.kind in _REDUCTIONS_OF_SHARDS:
        return [_reduce_over_shards(repair, axes, out) for out in outs]
    return outs


_REDUCTIONS_OF_SHARDS = ("sum_shards", "average_shards", "maximum_of_shards")


def _reduce_over_shards(repair: Repair, axes: MeshAxes, value: StackedArray) -> StackedArray:
    names = axes.drop_size_one(repair.mesh_axes)
    # A value that is the same on every device is a reduction of the full array already.
    if not names or not set(names) <= set(value.device_axes):
        return value
    if repair.kind == "maximum_of_shards":
        return pmax(axes, value, names)
    total = psum(axes, value, names)
    return _scale(total, 1 / axes.size(names)) if repair.kind == "average_shards" else total


def _reverse(eqn: Any) -> Any:
    pairs = tuple((destination, source) for source, destination in eqn.params["perm"])
    return eqn.replace(params={**eqn.params, "perm": pairs})


def _move_slice(
    axes: MeshAxes, names: tuple[str, ...], eqn: Any, ins: list[StackedArray]
) -> list[StackedArray]:
    """Add the position of each device's shard to slice starts that are the same on every device."""
    names = axes.drop_size_one(names)
    operand, *starts = eqn.invars
    # A dynamic_update_slice has the update, whose shape is that of the slice, before the starts.
    sizes = eqn.params.get("slice_sizes") or starts[0].aval.shape
    n_fixed = len(ins) - len(sizes)
    index = axis_index(axes, axis_name=names) if names else None
    moved = list(ins)
    for dim, (size, full) in enumerate(zip(sizes, operand.aval.shape, strict=True)):
        start = ins[n_fixed + dim]
        if index is None or size == full or set(names) & set(start.device_axes):
            continue
        offset = _scale(index, size)
        offset = StackedArray(offset.array.astype(start.array.dtype), offset.device_axes)
        moved[n_fixed + dim] = apply_local(axes, lax.add_p, {}, [start, offset])[0]
    return moved


def _choose(
    axes: MeshAxes, is_on: Any, repaired: list[StackedArray], original: list[StackedArray]
) -> list[StackedArray]:
    """Return the repaired values where `is_on`, which is only known when the program runs."""
    return [
        old
        if new is old
        else apply_local(axes, lax.select_n_p, {}, [StackedArray(is_on), old, new])[0]
        for new, old in zip(repaired, original, strict=True)
    ]


def _scale(value: StackedArray, factor: float) -> StackedArray:
    return StackedArray((value.array * factor).astype(value.array.dtype), value.device_axes)


def _scale_repeated_term(
    axes: MeshAxes, names: tuple[str, ...], ins: list[StackedArray]
) -> list[StackedArray]:
    """Divide the operand that is the same along `names` by their size, if another one differs."""
    repeated = [axes.size(set(names) - set(value.device_axes)) for value in ins]
    if min(repeated) == max(repeated):
        return ins
    return [
        _scale(value, 1 / n) if n == max(repeated) else value
        for value, n in zip(ins, repeated, strict=True)
    ]


def _add_offset(axes: MeshAxes, names: tuple[str, ...], value: StackedArray) -> StackedArray:
    """Add the first index of each device's shard to indices that start at 0 on every device."""
    names = axes.drop_size_one(names)
    if not names or value.device_axes or not value.array.ndim:
        return value
    first = axis_index(axes, axis_name=names).array * max(value.array.shape)
    shape = (*first.shape, *(1,) * value.array.ndim)
    array = (first.reshape(shape) + value.array).astype(value.array.dtype)
    return StackedArray(jnp.asarray(array), {name: i for i, name in enumerate(names)})
