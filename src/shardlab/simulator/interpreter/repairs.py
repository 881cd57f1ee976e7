"""Repairs: the same program with one line computed as it should be, to test what is wrong with it.

A result that depends on the mesh has a cause if changing the operation in question makes every
number right on every mesh. A `Repair` says how an operation is changed; while `apply_repair` is
active, the interpreter evaluates the equations of that operation so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp

from shardlab.simulator.interpreter.rules.local import apply_local
from shardlab.simulator.interpreter.rules.permutations import axis_index
from shardlab.simulator.interpreter.rules.reductions import psum
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray
from shardlab.simulator.repair import Repair

EvaluateEquation = Callable[[MeshAxes, Any, list[StackedArray]], list[StackedArray]]

_active_repairs: list[Mapping[int, Repair]] = []


@contextlib.contextmanager
def apply_repair(repairs: Mapping[int, Repair]) -> Iterator[None]:
    """Evaluate equations, given by their `id`, with their repair."""
    _active_repairs.append(repairs)
    try:
        yield
    finally:
        _active_repairs.pop()


def active_repair(eqn: Any) -> Repair | None:
    return _active_repairs[-1].get(id(eqn)) if _active_repairs else None


def evaluate_repaired(
    repair: Repair,
    axes: MeshAxes,
    eqn: Any,
    ins: list[StackedArray],
    evaluate_equation: EvaluateEquation,
) -> list[StackedArray]:
    """Evaluate one equation with its repair."""
    n = axes.size(repair.mesh_axes)
    if repair.kind in ("divide", "multiply"):
        factor = n if repair.kind == "multiply" else 1 / n
        return [_scale(out, factor) for out in evaluate_equation(axes, eqn, ins)]
    if repair.kind == "count_once":
        ins = _scale_repeated_term(axes, repair.mesh_axes, ins)
    if repair.kind == "divide_last":
        ins = [psum(axes, value, axes.drop_size_one(repair.mesh_axes)) for value in ins]
        (out,) = apply_local(axes, eqn.primitive, eqn.params, ins)
        return [_scale(out, 1 / n) if repair.is_summed else out]
    outs = evaluate_equation(axes, eqn, ins)
    if repair.kind == "offset":
        outs = [_add_offset(axes, repair.mesh_axes, out) for out in outs]
    return outs


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
