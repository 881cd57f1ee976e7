"""Infers over which mesh axes each value of a jaxpr varies, from the program alone.

JAX's VMA types (`aval.vma`) answer the same question, but are empty under `check_vma=False` and
count a `pcast` as a difference although the values stay equal. This analysis follows the data flow
instead, so that a loop knows before it runs which device axes its carries need. It is exact about
the program, not about values: `x - x` still varies.

Results are cached per jaxpr for as long as JAX keeps the jaxpr: a loop iterates to a fixed point,
and without the cache nested loops would analyze the inner body exponentially often.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from shardlab import _jax
from shardlab.simulator.interpreter.rules.calls import called_jaxpr
from shardlab.simulator.interpreter.rules.collectives import (
    COLLECTIVES,
    IDENTITY_COLLECTIVES,
    REPLICATING_COLLECTIVES,
    collective_axes,
)
from shardlab.simulator.interpreter.shard_boundary import spec_axes, spec_entries
from shardlab.simulator.interpreter.stacked_array import MeshAxes

AxisNames = frozenset[str]
UNVARYING: AxisNames = frozenset()

# jaxpr -> (mesh axes, which are manual, axes of each input) -> axes of each output
_cache: weakref.WeakKeyDictionary[Any, dict[Any, list[AxisNames]]] = weakref.WeakKeyDictionary()


def infer_varying_axes(axes: MeshAxes, jaxpr: Any, ins: Sequence[AxisNames]) -> list[AxisNames]:
    """Return the mesh axes over which each output varies, given those of each input."""
    inner, _ = _jax.open_jaxpr(jaxpr)
    results = _cache.setdefault(inner, {})
    key = (tuple(axes.sizes.items()), axes.manual, tuple(ins))
    if key not in results:
        results[key] = _infer_jaxpr_axes(axes, inner, ins)
    return results[key]


def _infer_jaxpr_axes(axes: MeshAxes, inner: Any, ins: Sequence[AxisNames]) -> list[AxisNames]:
    axes_of: dict[Any, AxisNames] = dict(zip(inner.invars, ins, strict=True))
    axes_of.update((const, UNVARYING) for const in inner.constvars)

    def read_atom(atom: Any) -> AxisNames:
        return UNVARYING if isinstance(atom, _jax.Literal) else axes_of[atom]

    for eqn in inner.eqns:
        outs = infer_equation_axes(axes, eqn, [read_atom(atom) for atom in eqn.invars])
        axes_of.update(zip(eqn.outvars, outs, strict=True))
    return [read_atom(atom) for atom in inner.outvars]


def infer_equation_axes(axes: MeshAxes, eqn: Any, ins: list[AxisNames]) -> list[AxisNames]:
    """Return the mesh axes over which each output of one equation varies."""
    name, params = eqn.primitive.name, eqn.params
    if name in COLLECTIVES:
        return [_infer_collective(axes, name, params, ins)]
    if name == "axis_index":
        return [frozenset(axes.drop_size_one(collective_axes(params)))]
    if name in IDENTITY_COLLECTIVES:
        return ins[: len(eqn.outvars)]
    if name == "shard_map":
        return _infer_shard_map(axes, params, ins)
    if name == "io_callback":
        # Each device makes its own call, and the host may return something else to each.
        return [UNVARYING.union(axes.drop_size_one(axes.manual))] * len(eqn.outvars)
    if name == "scan":
        return _infer_scan(axes, params, ins)
    if name == "while":
        return infer_while_carry(axes, params, ins)[0]
    if name == "cond":
        return infer_cond_outputs(axes, params, ins)
    body = called_jaxpr(name, params)
    if body is not None:
        return infer_varying_axes(axes, body, ins)
    # Any other primitive is local: its outputs vary over what its inputs vary over.
    return [UNVARYING.union(*ins)] * len(eqn.outvars)


def _infer_collective(
    axes: MeshAxes, name: str, params: dict[str, Any], ins: list[AxisNames]
) -> AxisNames:
    inputs = UNVARYING.union(*ins)
    names = frozenset(collective_axes(params))
    is_replicating = name.removesuffix("_start") in REPLICATING_COLLECTIVES
    # Within groups only the devices of one group end up equal.
    if is_replicating and params.get("axis_index_groups") is None:
        return inputs - names
    return inputs.union(axes.drop_size_one(names))


class GatheredAxes(frozenset[str]):
    """The axes of an array that a shard_map gathered, and those of its shards.

    A forward shard_map passes residuals to its backward one gathered over every mesh axis, also
    those that are equal on all devices. A shard_map that shards the array by the same spec gets the
    original shards back, so it varies only over the axes of the shards.
    """

    def __new__(cls, names: AxisNames, key: Any, shard_axes: AxisNames) -> GatheredAxes:
        axes = super().__new__(cls, names)
        axes.key = key  # how it was gathered: spec and local shape
        axes.shard_axes = shard_axes
        return axes

    key: Any
    shard_axes: AxisNames

    # Two equal sets with a different origin must not share an entry of the cache above.
    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, GatheredAxes)
            and (self.key, self.shard_axes) == (other.key, other.shard_axes)
            and super().__eq__(other)
        )

    __hash__ = frozenset.__hash__


def _infer_shard_map(
    axes: MeshAxes, params: dict[str, Any], ins: list[AxisNames]
) -> list[AxisNames]:
    inner, shards = enter_shard_map(axes, params, ins)
    newly_manual = frozenset(params["newly_manual_axes"])
    outs = infer_varying_axes(inner, params["jaxpr"], shards)
    body, _ = _jax.open_jaxpr(params["jaxpr"])
    return [
        GatheredAxes(names - newly_manual, _gather_key(spec, atom, inner), names)
        for names, spec, atom in zip(outs, params["out_specs"], body.outvars, strict=True)
    ]


def _gather_key(spec: Any, atom: Any, axes: MeshAxes) -> Any:
    shape = getattr(atom.aval, "shape", None)
    return tuple(spec_entries(spec)), frozenset(spec.unreduced), shape, axes.manual


def enter_shard_map(
    axes: MeshAxes, params: dict[str, Any], ins: Sequence[AxisNames]
) -> tuple[MeshAxes, list[AxisNames]]:
    """Return the axes in scope in the body of a shard_map, and those each input varies over."""
    inner = axes.enter_shard_map(dict(params["mesh"].shape), params["newly_manual_axes"])
    body, _ = _jax.open_jaxpr(params["jaxpr"])

    def shard_axes(outer_names: AxisNames, spec: Any, atom: Any) -> AxisNames:
        sharded = inner.drop_size_one(spec_axes(spec) | frozenset(spec.unreduced))
        names = outer_names.union(sharded)
        if not isinstance(outer_names, GatheredAxes):
            return names
        is_same_spec = outer_names.key == _gather_key(spec, atom, inner)
        return names & outer_names.shard_axes if is_same_spec else names

    return inner, list(map(shard_axes, ins, params["in_specs"], body.invars))


def _infer_scan(axes: MeshAxes, params: dict[str, Any], ins: list[AxisNames]) -> list[AxisNames]:
    carry = infer_scan_carry(axes, params, ins)
    n_consts, n_carry = _jax.scan_operand_counts(params)
    body_ins = [*ins[:n_consts], *carry, *ins[n_consts + n_carry :]]
    outs = infer_varying_axes(axes, params["jaxpr"], body_ins)
    return [*carry, *outs[n_carry:]]


def infer_scan_carry(
    axes: MeshAxes, params: dict[str, Any], ins: Sequence[AxisNames]
) -> list[AxisNames]:
    """Return the axes of each carry of a scan: the smallest set that an iteration preserves."""
    n_consts, n_carry = _jax.scan_operand_counts(params)
    carry = list(ins[n_consts : n_consts + n_carry])
    while True:
        body_ins = [*ins[:n_consts], *carry, *ins[n_consts + n_carry :]]
        outs = infer_varying_axes(axes, params["jaxpr"], body_ins)
        # Sets only grow and the mesh is finite, so this ends.
        wider = [a | b for a, b in zip(carry, outs[:n_carry], strict=True)]
        if wider == carry:
            return carry
        carry = wider


def infer_while_carry(
    axes: MeshAxes, params: dict[str, Any], ins: Sequence[AxisNames]
) -> tuple[list[AxisNames], AxisNames]:
    """Return the axes of each carry of a while loop, and those of its predicate."""
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    cond_consts, body_consts = list(ins[:n_cond]), list(ins[n_cond : n_cond + n_body])
    carry = list(ins[n_cond + n_body :])
    while True:
        (predicate,) = infer_varying_axes(axes, params["cond_jaxpr"], cond_consts + carry)
        outs = infer_varying_axes(axes, params["body_jaxpr"], body_consts + carry)
        # Devices that stop at different iterations end with different carries.
        wider = [a | b | predicate for a, b in zip(carry, outs, strict=True)]
        if wider == carry:
            return carry, predicate
        carry = wider


def infer_cond_outputs(
    axes: MeshAxes, params: dict[str, Any], ins: Sequence[AxisNames]
) -> list[AxisNames]:
    """Return the axes of each output of a cond: those of any branch, and of the predicate."""
    branches = [infer_varying_axes(axes, branch, ins[1:]) for branch in params["branches"]]
    return [ins[0].union(*outs) for outs in zip(*branches, strict=True)]
