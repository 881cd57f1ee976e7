"""The lineage of each output of a program: which operations its value went through.

Values alone show that an output depends on the mesh. The operations on the way to it show why, or
that it is by design: random numbers drawn from the same key on every device, a sum of quotients, a
backward pass, a narrow float type. `trace_lineages` propagates tags through the jaxpr, as abstract
interpretation does, and collects those that reach each output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from shardlab import _jax
from shardlab.findings.source import UNKNOWN_LOCATION, SourceLocation, written_name
from shardlab.simulator.interpreter.rules.calls import called_jaxpr
from shardlab.simulator.interpreter.rules.collectives import (
    COLLECTIVES,
    SUM_COLLECTIVES,
    collective_axes,
)
from shardlab.simulator.interpreter.stacked_array import MeshAxes
from shardlab.simulator.interpreter.varying import (
    UNVARYING,
    AxisNames,
    enter_shard_map,
    infer_equation_axes,
    infer_scan_carry,
    infer_while_carry,
)
from shardlab.simulator.run_records import CollectiveSite, OutputLineage
from shardlab.tracing.collective_calls import operation_name

Tag = tuple[Any, ...]
_ARGUMENT: Tag = ("argument",)
_GRADIENT: Tag = ("gradient",)
# A sum over an array that was only cast, reshaped or bounded since; any other operation drops the
# tag. A quotient of two such sums is a mean, and a psum of those is a mean of means.
_TOTAL: Tag = ("total",)
_DEVICE_INDEX: Tag = ("device_index",)
_CHECKED: Tag = ("check_vma",)

_RANDOM_PRIMITIVES = {"random_bits", "random_gamma", "rng_bit_generator", "threefry2x32"}
_KEEPS_TOTAL = {
    "convert_element_type",
    "broadcast_in_dim",
    "reshape",
    "squeeze",
    "max",
    "clamp",
    "select_n",
    "pvary",
    "pcast",
}


@dataclasses.dataclass(frozen=True)
class ValueFacts:
    """The tags of one value, and the mesh axes over which it varies."""

    tags: frozenset[Tag] = frozenset()
    varying_axes: AxisNames = UNVARYING


def trace_lineages(closed: Any) -> list[OutputLineage]:
    """Return the lineage of each output of a program."""
    inner, _ = _jax.open_jaxpr(closed)
    ins = [ValueFacts(frozenset({_ARGUMENT}) | _precision_tags(var)) for var in inner.invars]
    facts = _propagate(MeshAxes(), closed, ins)
    positions = {id(eqn): position for position, eqn in enumerate(_equations(closed))}
    return [_lineage_from_tags(fact.tags, positions) for fact in facts]


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Yield every equation at any depth, in program order."""
    inner, _ = _jax.open_jaxpr(jaxpr)
    for eqn in inner.eqns:
        yield eqn
        for body in _jax.inner_jaxprs(eqn.params):
            yield from _equations(body)


def _lineage_from_tags(tags: frozenset[Tag], positions: Mapping[int, int]) -> OutputLineage:
    def values_of(kind: str) -> list[Any]:
        return [tag[1] if len(tag) == 2 else tag[1:] for tag in tags if tag[0] == kind]

    # From the output back: what is computed last is the nearest to the output.
    collectives = sorted(values_of("collective"), key=lambda item: -positions.get(item[0], 0))

    return OutputLineage(
        has_arguments=_ARGUMENT in tags,
        is_gradient=_GRADIENT in tags,
        random=frozenset(values_of("random")),
        sums_ratios=tuple(sorted(values_of("sums_ratios"))),
        sums=tuple(sorted(values_of("sum"))),
        # The least precise float type on the path limits the result.
        eps=max(values_of("eps"), default=0.0),
        has_collectives=bool(collectives),
        collectives=tuple(dict.fromkeys(site for _, site in collectives)),
        has_device_index=_DEVICE_INDEX in tags,
        repeats_random=tuple(sorted(values_of("repeats_random"))),
        checks_vma=_CHECKED in tags,
        divided_by=tuple(sorted(values_of("divided"))),
    )


def _propagate(axes: MeshAxes, jaxpr: Any, ins: Sequence[ValueFacts]) -> list[ValueFacts]:
    inner, _ = _jax.open_jaxpr(jaxpr)
    facts: dict[Any, ValueFacts] = dict(zip(inner.invars, ins, strict=True))
    facts.update((const, ValueFacts()) for const in inner.constvars)

    def read_atom(atom: Any) -> ValueFacts:
        return ValueFacts() if isinstance(atom, _jax.Literal) else facts[atom]

    for eqn in inner.eqns:
        outs = _propagate_equation(axes, eqn, [read_atom(atom) for atom in eqn.invars])
        facts.update(zip(eqn.outvars, outs, strict=True))
    return [read_atom(atom) for atom in inner.outvars]


def _propagate_equation(axes: MeshAxes, eqn: Any, ins: list[ValueFacts]) -> list[ValueFacts]:
    name, params = eqn.primitive.name, eqn.params
    if name == "shard_map":
        inner, entered_axes = enter_shard_map(axes, params, [fact.varying_axes for fact in ins])
        body_ins = [
            ValueFacts(fact.tags, names) for fact, names in zip(ins, entered_axes, strict=True)
        ]
        newly_manual = frozenset(params["newly_manual_axes"])
        outs = _propagate(inner, params["jaxpr"], body_ins)
        vma_tags = frozenset({_CHECKED} if params["check_vma"] else ())
        outs = [ValueFacts(out.tags | vma_tags, out.varying_axes - newly_manual) for out in outs]
        # The equations of a body have a name stack of their own, without that of the shard_map.
        return _mark_gradient(eqn, outs)
    if name in _CONTROL_FLOW:
        return _CONTROL_FLOW[name](axes, eqn, ins)
    body = called_jaxpr(name, params)
    if body is not None:
        return _mark_gradient(eqn, _propagate(axes, body, ins))
    varying = infer_equation_axes(axes, eqn, [fact.varying_axes for fact in ins])
    tags = _operation_tags(axes, eqn, ins)
    outs = [
        ValueFacts(tags | _precision_tags(var), names)
        for var, names in zip(eqn.outvars, varying, strict=True)
    ]
    return _mark_gradient(eqn, outs)


def _operation_tags(axes: MeshAxes, eqn: Any, ins: list[ValueFacts]) -> frozenset[Tag]:
    name = eqn.primitive.name
    tags = frozenset().union(*(fact.tags for fact in ins))
    if name == "reduce_sum":
        return tags | {_TOTAL}
    # A mean by hand: sum / count. Only a divisor that varies over devices makes a mean of means, so
    # the mesh axes over which it varies are kept in the tag.
    if name == "div" and all(_TOTAL in fact.tags for fact in ins):
        tags |= {("ratio", axis) for axis in ins[1].varying_axes}
    # A psum that is divided by a literal afterwards: the literal may be a hard-coded device count.
    if name == "div" and _TOTAL not in tags and any(tag[0] == "sum" for tag in tags):
        tags |= _divisor_tags(eqn)
    if name in COLLECTIVES:
        tags |= {("collective", id(eqn), _collective_site(axes, eqn))}
    if name == "axis_index":
        tags |= {_DEVICE_INDEX}
    if name in SUM_COLLECTIVES:
        over, source = frozenset(collective_axes(eqn.params)), equation_location(eqn)
        if any(("ratio", axis) in tags for axis in over):
            tags |= {("sums_ratios", source)}
        tags |= {("sum", source, axes.in_mesh_order(over))}
    # Outside shard_map there is one program for all devices, so its random numbers are one draw.
    if name in _RANDOM_PRIMITIVES and axes.manual:
        key_kind = "by_device" if any(fact.varying_axes for fact in ins) else "same"
        tags |= {("random", key_kind)}
    tags |= _repeated_random_tags(ins)
    # A decision by a gradient (whether it is finite, whether its norm is too large) is none.
    if all(getattr(var.aval, "dtype", None) == np.bool_ for var in eqn.outvars):
        tags -= {_GRADIENT}
    return tags if name in _KEEPS_TOTAL else tags - {_TOTAL}


def _repeated_random_tags(ins: list[ValueFacts]) -> frozenset[Tag]:
    """Return a tag for each mesh axis over which an operand varies and a random one does not."""
    random_axes = [fact.varying_axes for fact in ins if ("random", "same") in fact.tags]
    if not random_axes or len(ins) < 2:
        return frozenset()
    varying = frozenset().union(*(fact.varying_axes for fact in ins))
    repeated = varying.difference(*random_axes)
    return frozenset(("repeats_random", axis) for axis in repeated)


def _collective_site(axes: MeshAxes, eqn: Any) -> CollectiveSite:
    source = equation_location(eqn)
    op = written_name(operation_name(eqn.primitive.name), source)
    return CollectiveSite(op, axes.in_mesh_order(frozenset(collective_axes(eqn.params))), source)


def _divisor_tags(eqn: Any) -> frozenset[Tag]:
    """Return a tag with the divisor if it is an integer literal, as a device count would be."""
    divisor = eqn.invars[1]
    number: Any = divisor.val if isinstance(divisor, _jax.Literal) else 1
    is_count = np.ndim(number) == 0 and number == np.round(number) > 1
    return frozenset({("divided", int(number))}) if is_count else frozenset()


def _mark_gradient(eqn: Any, outs: list[ValueFacts]) -> list[ValueFacts]:
    # JAX names the equations of a backward pass `transpose(jvp(...))` on their name stack.
    if "transpose(" not in _jax.name_stack(eqn):
        return outs
    return [ValueFacts(out.tags | {_GRADIENT}, out.varying_axes) for out in outs]


def _precision_tags(var: Any) -> frozenset[Tag]:
    dtype = getattr(var.aval, "dtype", None)
    if dtype is None or _jax.is_extended(dtype) or not jnp.issubdtype(dtype, jnp.inexact):
        return frozenset()
    return frozenset({("eps", float(jnp.finfo(dtype).eps))})


def equation_location(eqn: Any) -> SourceLocation:
    """Return the line of the user's program that an equation comes from."""
    location = _jax.user_location(eqn)
    return SourceLocation(*location) if location else UNKNOWN_LOCATION


# ---------------------------------------------------------------------------- loops and branches


def _propagate_scan(axes: MeshAxes, eqn: Any, ins: list[ValueFacts]) -> list[ValueFacts]:
    params = eqn.params
    n_consts, n_carry = _jax.scan_operand_counts(params)
    names = infer_scan_carry(axes, params, [fact.varying_axes for fact in ins])
    carry = [
        ValueFacts(fact.tags, axes_of_carry)
        for fact, axes_of_carry in zip(ins[n_consts : n_consts + n_carry], names, strict=True)
    ]
    # Tags of one iteration reach the next through the carry. They only grow and are finitely many,
    # so this reaches a fixed point.
    while True:
        # Consts, carry and slices in the order of the body's parameters.
        body_ins = [*ins[:n_consts], *carry, *ins[n_consts + n_carry :]]
        outs = _propagate(axes, params["jaxpr"], body_ins)
        wider = _widen_carry(carry, outs[:n_carry])
        if wider == carry:
            return _mark_gradient(eqn, [*carry, *outs[n_carry:]])
        carry = wider


def _propagate_while(axes: MeshAxes, eqn: Any, ins: list[ValueFacts]) -> list[ValueFacts]:
    params = eqn.params
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    names, _ = infer_while_carry(axes, params, [fact.varying_axes for fact in ins])
    carry = [
        ValueFacts(fact.tags, axes_of_carry)
        for fact, axes_of_carry in zip(ins[n_cond + n_body :], names, strict=True)
    ]
    while True:
        (condition,) = _propagate(axes, params["cond_jaxpr"], [*ins[:n_cond], *carry])
        outs = _propagate(axes, params["body_jaxpr"], [*ins[n_cond : n_cond + n_body], *carry])
        # The condition decides how often the body runs, so it is part of every carry's lineage.
        wider = [
            ValueFacts(fact.tags | condition.tags - {_TOTAL}, fact.varying_axes)
            for fact in _widen_carry(carry, outs)
        ]
        if wider == carry:
            return _mark_gradient(eqn, carry)
        carry = wider


def _propagate_cond(axes: MeshAxes, eqn: Any, ins: list[ValueFacts]) -> list[ValueFacts]:
    # ins[0] is the index of the branch; the branches take the other operands.
    branches = [_propagate(axes, branch, ins[1:]) for branch in eqn.params["branches"]]
    return _mark_gradient(
        eqn,
        [
            ValueFacts(
                (ins[0].tags - {_TOTAL}).union(*(out.tags for out in outs)),
                ins[0].varying_axes.union(*(out.varying_axes for out in outs)),
            )
            for outs in zip(*branches, strict=True)
        ],
    )


def _widen_carry(carry: list[ValueFacts], outs: Sequence[ValueFacts]) -> list[ValueFacts]:
    return [
        ValueFacts(old.tags | new.tags - {_TOTAL}, old.varying_axes | new.varying_axes)
        for old, new in zip(carry, outs, strict=True)
    ]


_CONTROL_FLOW = {"scan": _propagate_scan, "while": _propagate_while, "cond": _propagate_cond}
