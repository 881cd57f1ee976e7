"""Sums inside `jax.sharding.auto_axes` whose result is declared unreduced.

Inside `auto_axes` the types say nothing about mesh axes; the compiler propagates shardings instead.
`auto_axes(lambda x: x.sum(0), out_sharding=P(unreduced={"x"}))` of an array that is sharded over x
leaves each device with the sum of its own rows. `jnp.bincount` and `jax.ops.segment_sum` with an
unreduced `out_sharding` are written this way.

This follows shardings from where values enter the region, through operations that keep dimensions
apart, up to such a sum. If the compiler would find a sharding on another way, the sum stays on the
first device; the total is the same.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.sharding import AxisType, PartitionSpec

from shardlab import _jax
from shardlab.simulator.interpreter.rules.calls import called_jaxpr
from shardlab.simulator.interpreter.rules.local import is_elementwise
from shardlab.simulator.interpreter.shard_boundary import (
    place_partial_sum,
    shard_input,
    spec_entries,
)
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray
from shardlab.simulator.interpreter.unreduced import SUMS, unreduced_axes

# The mesh axes that shard each dimension.
Entries = tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True)
class AutoSum:
    """How the operands of a sum are split over devices, so that its result is unreduced."""

    is_scatter: bool
    operand_entries: tuple[Entries, ...]

    def split_operands(self, axes: MeshAxes, ins: Sequence[StackedArray]) -> Sequence[StackedArray]:
        """Give each device its shard of every operand."""
        shards = [
            shard_input(value, PartitionSpec(*entries), axes)
            for value, entries in zip(ins, self.operand_entries, strict=True)
        ]
        if self.is_scatter:  # the array to which updates are added counts once
            names = frozenset(n for entries in self.operand_entries for e in entries for n in e)
            shards[0] = place_partial_sum(shards[0], frozenset(axes.drop_size_one(names)), axes)
        return shards


def find_auto_sums(jaxpr: Any) -> dict[int, AutoSum]:
    """Return the sums of a jaxpr that `reshard` turns into unreduced values, by equation index."""
    requested = _requested_axes(jaxpr)
    if not requested:
        return {}
    entries = _propagate_entries(jaxpr, {})
    sums = {}
    for index, eqn in enumerate(jaxpr.eqns):
        names = requested.get(eqn.outvars[0]) if len(eqn.outvars) == 1 else None
        if names and eqn.primitive.name in SUMS:
            operands = [_read_entries(atom, entries) for atom in eqn.invars]
            split = _split_summed_dims(eqn, operands, names)
            if any(entry for operand in split for entry in operand):
                sums[index] = AutoSum(eqn.primitive.name == "scatter-add", split)
    return sums


def _requested_axes(jaxpr: Any) -> dict[Any, frozenset[str]]:
    """Return the values whose only use is a `reshard` to unreduced, with the axes it adds."""
    atoms = [atom for eqn in jaxpr.eqns for atom in eqn.invars] + list(jaxpr.outvars)
    n_uses = collections.Counter(atom for atom in atoms if not isinstance(atom, _jax.Literal))
    requested = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "reshard" and not isinstance(eqn.invars[0], _jax.Literal):
            source = eqn.invars[0]
            names = unreduced_axes(eqn.outvars[0].aval) & _auto_axes(source.aval)
            if names and n_uses[source] == 1:
                requested[source] = names
    return requested


def _auto_axes(aval: Any) -> frozenset[str]:
    if not _jax.has_sharding(aval):
        return frozenset()
    mesh = aval.sharding.mesh
    pairs = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return frozenset(name for name, axis_type in pairs if axis_type == AxisType.Auto)


# ------------------------------------------------------------------------- from inputs to the sum


def _propagate_entries(jaxpr: Any, known: Mapping[Any, Entries]) -> dict[Any, Entries]:
    """Return the axes of each value that is sharded over an Auto axis, as far as they are known."""
    entries = dict(known)
    for eqn in jaxpr.eqns:
        for var, entry in zip(eqn.outvars, _output_entries(eqn, entries), strict=True):
            if any(entry):
                entries[var] = entry
    return entries


def _output_entries(eqn: Any, entries: Mapping[Any, Entries]) -> Sequence[Entries]:
    name, operands = eqn.primitive.name, [_read_entries(atom, entries) for atom in eqn.invars]
    if name == "reshard":
        return [_enter_region(eqn.invars[0].aval, eqn.outvars[0].aval)]
    if not any(any(operand) for operand in operands):
        return [_no_entries(var.aval) for var in eqn.outvars]
    body = called_jaxpr(name, eqn.params)
    if body is not None:
        inner, _ = _jax.open_jaxpr(body)
        if len(inner.invars) == len(operands):
            values = _propagate_entries(inner, dict(zip(inner.invars, operands, strict=True)))
            return [_read_entries(atom, values) for atom in inner.outvars]
    propagate = _KEEPS_DIMS.get(name)
    if propagate is not None:
        return [propagate(eqn, operands[0])]
    if is_elementwise(eqn.primitive):
        # A scalar operand, such as the predicate of select_n, shards nothing.
        n_dims = len(eqn.outvars[0].aval.shape)
        merged = _merge_entries([operand for operand in operands if len(operand) == n_dims])
        return [merged] * len(eqn.outvars)
    return [_no_entries(var.aval) for var in eqn.outvars]


def _read_entries(atom: Any, entries: Mapping[Any, Entries]) -> Entries:
    if isinstance(atom, _jax.Literal) or atom not in entries:
        return _no_entries(atom.aval)
    return entries[atom]


def _no_entries(aval: Any) -> Entries:
    return ((),) * len(getattr(aval, "shape", ()))


def _enter_region(before: Any, after: Any) -> Entries:
    """Return the axes that shard a value and become Auto: its type loses them, the value does not.

    A `reshard` to another Explicit sharding moves data, and its result is sharded as its type says.
    """
    if not _jax.has_sharding(before):
        return _no_entries(before)
    auto_names = _auto_axes(after)
    partitions = spec_entries(before.sharding.spec)
    entries = tuple(tuple(name for name in entry if name in auto_names) for entry in partitions)
    return entries + ((),) * (len(before.shape) - len(entries))


def _broadcast_entries(eqn: Any, operand: Entries) -> Entries:
    shape = eqn.outvars[0].aval.shape
    result: list[tuple[str, ...]] = [()] * len(shape)
    for dim, target in enumerate(eqn.params["broadcast_dimensions"]):
        if eqn.invars[0].aval.shape[dim] == shape[target]:
            result[target] = operand[dim]
    return tuple(result)


def _transpose_entries(eqn: Any, operand: Entries) -> Entries:
    return tuple(operand[dim] for dim in eqn.params["permutation"])


_KEEPS_DIMS: dict[str, Callable[[Any, Entries], Entries]] = {
    "broadcast_in_dim": _broadcast_entries,
    "transpose": _transpose_entries,
}


def _merge_entries(operands: Sequence[Entries]) -> Entries:
    """Return the axes of an elementwise result: the first operand that shards a dimension decides.

    An axis that already shards another dimension is left out.
    """
    used: set[str] = set()
    result = []
    for candidates in zip(*operands, strict=True):
        entry = next((entry for entry in candidates if entry), ())
        entry = entry if used.isdisjoint(entry) else ()
        used.update(entry)
        result.append(entry)
    return tuple(result)


# ------------------------------------------------------------------------------- within the sum


def _split_summed_dims(
    eqn: Any, operands: Sequence[Entries], names: frozenset[str]
) -> tuple[Entries, ...]:
    """Return the axes of `names` that shard the summed dimensions, for each operand."""
    split: list[list[tuple[str, ...]]] = [[()] * len(operand) for operand in operands]
    used: set[str] = set()
    for group in _summed_dims(eqn):
        # The same dimension of several operands: if one is sharded, the compiler shards them all.
        candidates = (operands[index][dim] for index, dim in group)
        entry = tuple(n for n in next(filter(None, candidates), ()) if n in names and n not in used)
        used.update(entry)
        for index, dim in group:
            split[index][dim] = entry
    return tuple(tuple(entries) for entries in split)


def _summed_dims(eqn: Any) -> list[list[tuple[int, int]]]:
    """Return the summed dimensions; each is a list of (operand, dimension of the operand)."""
    params = eqn.params
    if eqn.primitive.name == "reduce_sum":
        return [[(0, dim)] for dim in params["axes"]]
    if eqn.primitive.name == "dot_general":
        lhs_dims, rhs_dims = params["dimension_numbers"][0]
        return [[(0, lhs), (1, rhs)] for lhs, rhs in zip(lhs_dims, rhs_dims, strict=True)]
    # A scatter-add sums over the dimensions that indices and updates share.
    window_dims = params["dimension_numbers"].update_window_dims
    update_dims = [d for d in range(len(eqn.invars[2].aval.shape)) if d not in window_dims]
    return [[(1, i), (2, update_dim)] for i, update_dim in enumerate(update_dims)]
