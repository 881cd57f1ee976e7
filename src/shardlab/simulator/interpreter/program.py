"""Evaluates a program of simulated mode, which contains shard_maps, on global arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardlab import _jax
from shardlab.simulator.interpreter.evaluate import evaluate_jaxpr
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray
from shardlab.simulator.interpreter.unreduced import (
    combine_terms,
    split_shards,
    stack_partial_sums,
    unreduced_axes,
    unreduced_mesh_sizes,
    with_device_axes,
)


def evaluate_program(jaxpr: Any, args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the outputs as global arrays, and the partial sums of those that are unreduced.

    An unreduced argument is its partial sums, stacked in front (`stack_partial_sums`), or their
    total.
    """
    sizes = unreduced_mesh_sizes(jaxpr)
    if not sizes:
        values = evaluate_jaxpr(MeshAxes(), jaxpr, [StackedArray(arg) for arg in args])
        arrays = [value.array for value in values]
        return list(map(_jax.match_weak_type, arrays, jaxpr.out_avals)), [None] * len(values)
    axes = MeshAxes(sizes=sizes, keeps_partial_sums=True)
    inner, _ = _jax.open_jaxpr(jaxpr)
    ins = [_enter(axes, arg, var.aval) for arg, var in zip(args, inner.invars, strict=True)]
    values = [
        with_device_axes(axes, value, var.aval)
        for value, var in zip(evaluate_jaxpr(axes, jaxpr, ins), inner.outvars, strict=True)
    ]
    totals = [
        combine_terms(axes, value, tuple(value.device_axes), var.aval).array
        for value, var in zip(values, inner.outvars, strict=True)
    ]
    terms = [stack_partial_sums(value) if value.device_axes else None for value in values]
    return list(map(_jax.match_weak_type, totals, jaxpr.out_avals)), terms


def _enter(axes: MeshAxes, arg: Any, aval: Any) -> StackedArray:
    names = sorted(axes.drop_size_one(unreduced_axes(aval)))
    if names and arg.ndim > aval.ndim:
        return StackedArray(arg, {name: i for i, name in enumerate(names)})
    return with_device_axes(axes, StackedArray(arg), aval)


def split_global_array(array: Any, aval: Any, sharding: Any) -> Any:
    """Return the stacked partial sums of an array of type `aval` that is made unreduced."""
    names = frozenset(sharding.spec.unreduced)
    axes = MeshAxes(sizes=dict(sharding.mesh.shape))
    if not axes.drop_size_one(names):
        return None
    return stack_partial_sums(split_shards(axes, StackedArray(array), aval, names))
