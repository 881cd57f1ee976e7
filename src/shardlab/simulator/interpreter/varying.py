"""Over which mesh axes does each value of a jaxpr vary? Answered from the program alone.

The types of JAX (vma) answer it too, but are empty under `check_vma=False` and count a cast as a
difference. This one follows what really happens, so that loops know before they run which device
axes their carries need. It is exact in the program, not in the values.

Answers are remembered by jaxpr, as long as JAX keeps it: a loop asks until nothing widens, and
without that loops within loops would ask exponentially often.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from shardlab import _jax
from shardlab.simulator.interpreter import shard_boundary as boundary
from shardlab.simulator.interpreter.rules.calls import called_jaxpr
from shardlab.simulator.interpreter.rules.collectives import (
    COLLECTIVES,
    IDENTITY_COLLECTIVES,
    MAKE_EQUAL,
    collective_axes,
)
from shardlab.simulator.interpreter.stacked_array import MeshAxes

AxisNames = frozenset[str]
UNVARYING: AxisNames = frozenset()

# jaxpr -> (mesh axes, which are manual, axes of each input) -> axes of each output
_answers: weakref.WeakKeyDictionary[Any, dict[Any, list[AxisNames]]] = weakref.WeakKeyDictionary()


def infer_varying_axes(axes: MeshAxes, jaxpr: Any, ins: Sequence[AxisNames]) -> list[AxisNames]:
    """Return the mesh axes over which each output varies, given those of each input."""
    inner, _ = _jax.open_jaxpr(jaxpr)
    remembered = _answers.setdefault(inner, {})
    key = (tuple(axes.sizes.items()), axes.manual, tuple(ins))
    if key not in remembered:
        remembered[key] = _varying(axes, inner, ins)
    return remembered[key]


def _varying(axes: MeshAxes, inner: Any, ins: Sequence[AxisNames]) -> list[AxisNames]:
    known: dict[Any, AxisNames] = dict(zip(inner.invars, ins, strict=True))
    known.update((const, UNVARYING) for const in inner.constvars)

    def read(atom: Any) -> AxisNames:
        return UNVARYING if isinstance(atom, _jax.Literal) else known[atom]

    for eqn in inner.eqns:
        outs = infer_equation_axes(axes, eqn, [read(atom) for atom in eqn.invars])
        known.update(zip(eqn.outvars, outs, strict=True))
    return [read(atom) for atom in inner.outvars]


def infer_equation_axes(axes: MeshAxes, eqn: Any, ins: list[AxisNames]) -> list[AxisNames]:
    """Return the mesh axes over which each output of one equation varies."""
    name, params = eqn.primitive.name, eqn.params
    if name in COLLECTIVES:
        return [_collective(axes, name, params, ins)]
    if name == "axis_index":
        return [frozenset(axes.drop_size_one(collective_axes(params)))]
    if name in IDENTITY_COLLECTIVES:
        return ins[: len(eqn.outvars)]
    if name == "shard_map":
        return _shard_map(axes, params, ins)
    if name == "io_callback":
        # Each device calls, and the host may answer each differently.
        return [UNVARYING.union(axes.drop_size_one(axes.manual))] * len(eqn.outvars)
    if name == "scan":
        return _scan(axes, params, ins)
    if name == "while":
        return infer_while_carry(axes, params, ins)[0]
    if name == "cond":
        return infer_cond_outputs(axes, params, ins)
    body = called_jaxpr(name, params)
    if body is not None:
        return infer_varying_axes(axes, body, ins)
    return [UNVARYING.union(*ins)] * len(eqn.outvars)


def _collective(
    axes: MeshAxes, name: str, params: dict[str, Any], ins: list[AxisNames]
) -> AxisNames:
    before = UNVARYING.union(*ins)
    names = frozenset(collective_axes(params))
    if name.removesuffix("_start") in MAKE_EQUAL and params.get("axis_index_groups") is None:
        return before - names
    return before.union(axes.drop_size_one(names))


class Pieces(frozenset[str]):
    """The axes of an array that a shard_map put together, and those of its pieces.

    What a forward shard_map leaves for its gradient is put together over every mesh axis, also what
    is the same everywhere. A shard_map that takes it apart by the same spec has the pieces again.
    """

    def __new__(cls, names: AxisNames, key: Any, before: AxisNames) -> Pieces:
        made = super().__new__(cls, names)
        made.key = key  # how it was put together: spec and local shape
        made.before = before
        return made

    key: Any
    before: AxisNames

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, Pieces) and (self.key, self.before) == (other.key, other.before)
        return same and super().__eq__(other)

    __hash__ = frozenset.__hash__


def _shard_map(axes: MeshAxes, params: dict[str, Any], ins: list[AxisNames]) -> list[AxisNames]:
    inner, cut = enter_shard_map(axes, params, ins)
    newly = frozenset(params["newly_manual_axes"])
    outs = infer_varying_axes(inner, params["jaxpr"], cut)
    body, _ = _jax.open_jaxpr(params["jaxpr"])
    return [
        Pieces(names - newly, _key(spec, atom, inner), names)
        for names, spec, atom in zip(outs, params["out_specs"], body.outvars, strict=True)
    ]


def _key(spec: Any, atom: Any, axes: MeshAxes) -> Any:
    shape = getattr(atom.aval, "shape", None)
    return tuple(boundary.spec_entries(spec)), frozenset(spec.unreduced), shape, axes.manual


def enter_shard_map(
    axes: MeshAxes, params: dict[str, Any], ins: Sequence[AxisNames]
) -> tuple[MeshAxes, list[AxisNames]]:
    """Return the axes seen in the body of a shard_map, and those over which each input varies."""
    inner = axes.enter(dict(params["mesh"].shape), params["newly_manual_axes"])
    body, _ = _jax.open_jaxpr(params["jaxpr"])

    def cut(before: AxisNames, spec: Any, atom: Any) -> AxisNames:
        names = before.union(
            inner.drop_size_one(boundary.spec_axes(spec) | frozenset(spec.unreduced))
        )
        if isinstance(before, Pieces) and before.key == _key(spec, atom, inner):
            return names & before.before
        return names

    return inner, list(map(cut, ins, params["in_specs"], body.invars))


def _scan(axes: MeshAxes, params: dict[str, Any], ins: list[AxisNames]) -> list[AxisNames]:
    carry = infer_scan_carry(axes, params, ins)
    n_consts, n_carry = _jax.scan_operand_counts(params)
    outs = infer_varying_axes(
        axes, params["jaxpr"], [*ins[:n_consts], *carry, *ins[n_consts + n_carry :]]
    )
    return [*carry, *outs[n_carry:]]


def infer_scan_carry(
    axes: MeshAxes, params: dict[str, Any], ins: Sequence[AxisNames]
) -> list[AxisNames]:
    """Return the axes of each carry of a scan: the least that one more step does not widen."""
    n_consts, n_carry = _jax.scan_operand_counts(params)
    carry = list(ins[n_consts : n_consts + n_carry])
    while True:
        outs = infer_varying_axes(
            axes, params["jaxpr"], [*ins[:n_consts], *carry, *ins[n_consts + n_carry :]]
        )
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
        wider = [a | b | predicate for a, b in zip(carry, outs, strict=True)]
        if wider == carry:
            return carry, predicate
        carry = wider


def infer_cond_outputs(
    axes: MeshAxes, params: dict[str, Any], ins: Sequence[AxisNames]
) -> list[AxisNames]:
    """Return the axes of each output of a cond: of any branch, and of what chooses it."""
    branches = [infer_varying_axes(axes, branch, ins[1:]) for branch in params["branches"]]
    return [ins[0].union(*outs) for outs in zip(*branches, strict=True)]
