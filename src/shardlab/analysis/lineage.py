"""What goes into each output of a program, followed through its jaxpr.

Numbers alone say that an output depends on the mesh; what they passed through says why, or that it
is by design: random numbers drawn from the same key on every device, a sum of quotients, a backward
pass, a narrow float type.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from shardlab import _jax
from shardlab.findings.source import UNKNOWN_LOCATION, SourceLocation
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
from shardlab.simulator.run_records import OutputLineage

Tag = tuple[Any, ...]
_ARGUMENT: Tag = ("argument",)
_GRADIENT: Tag = ("gradient",)
# A sum over an array, so far only cast, reshaped or bounded; any other operation ends it.
_TOTAL: Tag = ("total",)
_COLLECTIVE: Tag = ("collective",)
_CHECKED: Tag = ("check_vma",)

_DRAWS = {"random_bits", "random_gamma", "rng_bit_generator", "threefry2x32"}
_KEEP_TOTALS = {
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
class Fact:
    """What is known of one value: what went into it, and the mesh axes over which it varies."""

    tags: frozenset[Tag] = frozenset()
    names: AxisNames = UNVARYING


def lineages(closed: Any) -> list[OutputLineage]:
    """Return what went into each output of a program."""
    inner, _ = _jax.open_jaxpr(closed)
    ins = [_argument(var) for var in inner.invars]
    return [_lineage(fact.tags) for fact in _follow(MeshAxes(), closed, ins)]


def _argument(var: Any) -> Fact:
    return Fact(frozenset({_ARGUMENT}) | _precision(var))


def _lineage(tags: frozenset[Tag]) -> OutputLineage:
    def of(kind: str) -> list[Any]:
        return [tag[1] if len(tag) == 2 else tag[1:] for tag in tags if tag[0] == kind]

    return OutputLineage(
        has_arguments=_ARGUMENT in tags,
        is_gradient=_GRADIENT in tags,
        random=frozenset(of("random")),
        sums_ratios=tuple(sorted(of("sums_ratios"))),
        sums=tuple(sorted(of("sum"))),
        eps=max(of("eps"), default=0.0),
        has_collectives=_COLLECTIVE in tags,
        checks_vma=_CHECKED in tags,
        divided_by=tuple(sorted(of("divided"))),
    )


def _follow(axes: MeshAxes, jaxpr: Any, ins: Sequence[Fact]) -> list[Fact]:
    inner, _ = _jax.open_jaxpr(jaxpr)
    known: dict[Any, Fact] = dict(zip(inner.invars, ins, strict=True))
    known.update((const, Fact()) for const in inner.constvars)

    def read(atom: Any) -> Fact:
        return Fact() if isinstance(atom, _jax.Literal) else known[atom]

    for eqn in inner.eqns:
        outs = _equation(axes, eqn, [read(atom) for atom in eqn.invars])
        known.update(zip(eqn.outvars, outs, strict=True))
    return [read(atom) for atom in inner.outvars]


def _equation(axes: MeshAxes, eqn: Any, ins: list[Fact]) -> list[Fact]:
    name, params = eqn.primitive.name, eqn.params
    if name == "shard_map":
        inner, cut = enter_shard_map(axes, params, [fact.names for fact in ins])
        entered = [Fact(fact.tags, names) for fact, names in zip(ins, cut, strict=True)]
        newly = frozenset(params["newly_manual_axes"])
        outs = _follow(inner, params["jaxpr"], entered)
        checked = frozenset({_CHECKED} if params["check_vma"] else ())
        return [Fact(out.tags | checked, out.names - newly) for out in outs]
    if name in _CONTROL:
        return _CONTROL[name](axes, eqn, ins)
    body = called_jaxpr(name, params)
    if body is not None:
        return _marked(eqn, _follow(axes, body, ins))
    names = infer_equation_axes(axes, eqn, [fact.names for fact in ins])
    tags = _operation(axes, eqn, ins)
    outs = [
        Fact(tags | _precision(var), each) for var, each in zip(eqn.outvars, names, strict=True)
    ]
    return _marked(eqn, outs)


def _operation(axes: MeshAxes, eqn: Any, ins: list[Fact]) -> frozenset[Tag]:
    name = eqn.primitive.name
    tags = frozenset().union(*(fact.tags for fact in ins))
    if name == "reduce_sum":
        return tags | {_TOTAL}
    if name == "div" and all(_TOTAL in fact.tags for fact in ins):
        tags |= {("ratio", axis) for axis in ins[1].names}
    if name == "div" and _TOTAL not in tags and any(tag[0] == "sum" for tag in tags):
        tags |= _divisor(eqn)
    if name in COLLECTIVES:
        tags |= {_COLLECTIVE}
    if name in SUM_COLLECTIVES:
        over, source = frozenset(collective_axes(eqn.params)), _source(eqn)
        if any(("ratio", axis) in tags for axis in over):
            tags |= {("sums_ratios", source)}
        tags |= {("sum", source, axes.in_mesh_order(over))}
    if name in _DRAWS and axes.manual:
        drawn = "by_device" if any(fact.names for fact in ins) else "same"
        tags |= {("random", drawn)}
    return tags if name in _KEEP_TOTALS else tags - {_TOTAL}


def _divisor(eqn: Any) -> frozenset[Tag]:
    """Return the whole number that is written as the divisor, if one is."""
    divisor = eqn.invars[1]
    number: Any = divisor.val if isinstance(divisor, _jax.Literal) else 1
    is_count = np.ndim(number) == 0 and number == np.round(number) > 1
    return frozenset({("divided", int(number))}) if is_count else frozenset()


def _marked(eqn: Any, outs: list[Fact]) -> list[Fact]:
    if "transpose(" not in _jax.name_stack(eqn):
        return outs
    return [Fact(out.tags | {_GRADIENT}, out.names) for out in outs]


def _precision(var: Any) -> frozenset[Tag]:
    dtype = getattr(var.aval, "dtype", None)
    if dtype is None or _jax.is_extended(dtype) or not jnp.issubdtype(dtype, jnp.inexact):
        return frozenset()
    return frozenset({("eps", float(jnp.finfo(dtype).eps))})


def _source(eqn: Any) -> SourceLocation:
    place = _jax.user_location(eqn)
    return SourceLocation(*place) if place else UNKNOWN_LOCATION


# ---------------------------------------------------------------------------- loops and branches


def _scan(axes: MeshAxes, eqn: Any, ins: list[Fact]) -> list[Fact]:
    params = eqn.params
    n_consts, n_carry = _jax.scan_operand_counts(params)
    names = infer_scan_carry(axes, params, [fact.names for fact in ins])
    carry = [
        Fact(f.tags, n) for f, n in zip(ins[n_consts : n_consts + n_carry], names, strict=True)
    ]
    while True:
        outs = _follow(axes, params["jaxpr"], [*ins[:n_consts], *carry, *ins[n_consts + n_carry :]])
        wider = _wider(carry, outs[:n_carry])
        if wider == carry:
            return _marked(eqn, [*carry, *outs[n_carry:]])
        carry = wider


def _while(axes: MeshAxes, eqn: Any, ins: list[Fact]) -> list[Fact]:
    params = eqn.params
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    names, _ = infer_while_carry(axes, params, [fact.names for fact in ins])
    carry = [Fact(f.tags, n) for f, n in zip(ins[n_cond + n_body :], names, strict=True)]
    while True:
        (chosen,) = _follow(axes, params["cond_jaxpr"], [*ins[:n_cond], *carry])
        outs = _follow(axes, params["body_jaxpr"], [*ins[n_cond : n_cond + n_body], *carry])
        wider = [Fact(f.tags | chosen.tags - {_TOTAL}, f.names) for f in _wider(carry, outs)]
        if wider == carry:
            return _marked(eqn, carry)
        carry = wider


def _cond(axes: MeshAxes, eqn: Any, ins: list[Fact]) -> list[Fact]:
    branches = [_follow(axes, branch, ins[1:]) for branch in eqn.params["branches"]]
    return _marked(
        eqn,
        [
            Fact(
                (ins[0].tags - {_TOTAL}).union(*(out.tags for out in outs)),
                ins[0].names.union(*(out.names for out in outs)),
            )
            for outs in zip(*branches, strict=True)
        ],
    )


def _wider(carry: list[Fact], outs: Sequence[Fact]) -> list[Fact]:
    return [
        Fact(old.tags | new.tags - {_TOTAL}, old.names | new.names)
        for old, new in zip(carry, outs, strict=True)
    ]


_CONTROL = {"scan": _scan, "while": _while, "cond": _cond}
