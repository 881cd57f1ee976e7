"""Evaluates the jaxpr of a shard_map on one device, with explicit device axes.

The jaxpr is JAX's own: tracing, checks, differentiation, vmap and remat have happened before, so
what is simulated is what devices would have been given. Evaluation binds ordinary JAX operations in
whatever trace is current, so one jit compiles the whole mesh as a single-device program.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from shardlab import _jax
from shardlab.errors import CannotSimulate, ManualAxisConstraint
from shardlab.simulator.interpreter import deadlock as stuck
from shardlab.simulator.interpreter import replicas
from shardlab.simulator.interpreter import shard_boundary as boundary
from shardlab.simulator.interpreter.partial_sums import Deferred, Value, defer, force
from shardlab.simulator.interpreter.rules import callbacks as effects
from shardlab.simulator.interpreter.rules import control_flow as control
from shardlab.simulator.interpreter.rules.calls import called_jaxpr
from shardlab.simulator.interpreter.rules.collectives import (
    COLLECTIVES,
    IDENTITY_COLLECTIVES,
    SUM_COLLECTIVES,
)
from shardlab.simulator.interpreter.rules.local import local
from shardlab.simulator.interpreter.rules.permutations import axis_index
from shardlab.simulator.interpreter.rules.reductions import names_in
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray
from shardlab.simulator.interpreter.unjoined import UnjoinedOutput


def shard_map(
    axes: MeshAxes, params: dict[str, Any], ins: Sequence[Value], *, keep_summands: bool = False
) -> list[UnjoinedOutput]:
    """Evaluate one shard_map equation: cut the inputs and run the body; joining can wait.

    An `unreduced` array is a sum whose summands lie on different devices. Outside it is held as
    the sum; with `keep_summands` (and for inputs that come with them) it keeps its device axes.
    """
    newly = frozenset(params["newly_manual_axes"])
    inner = axes.enter(dict(params["mesh"].shape), newly)
    shards = [
        _enter(value, spec, inner, newly)
        for value, spec in zip(ins, params["in_specs"], strict=True)
    ]
    outs = run(inner, params["jaxpr"], shards)
    body, file, line = _jax.body_of(params["jaxpr"])
    return [
        UnjoinedOutput(
            shards=replicas.settle(
                value,
                spec,
                inner,
                newly,
                keep_summands,
                replicas.Output(number, len(outs), body, file, line),
            ),
            spec=spec,
            inner=inner,
            newly=newly,
        )
        for number, (value, spec) in enumerate(zip(outs, params["out_specs"], strict=True))
    ]


def _enter(value: Value, spec: Any, inner: MeshAxes, newly: frozenset[str]) -> StackedArray:
    """Give each device its slice; what another shard_map has left apart is not joined and cut."""
    if isinstance(value, UnjoinedOutput) and value.fits(spec, inner, newly):
        return value.shards
    whole = force(value)
    one_sum = frozenset(spec.unreduced) - set(whole.at)
    return boundary.spread_partial_sum(boundary.cut(whole, spec, inner), one_sum, inner)


def run(axes: MeshAxes, jaxpr: Any, args: Sequence[StackedArray]) -> list[StackedArray]:
    """Evaluate a jaxpr on every device at once."""
    return [force(value) for value in _run(axes, jaxpr, args)]


def equation(axes: MeshAxes, eqn: Any, ins: Sequence[StackedArray]) -> list[StackedArray]:
    """Evaluate one equation on every device at once."""
    return [force(value) for value in _equation(axes, eqn, list(ins))]


def _run(axes: MeshAxes, jaxpr: Any, args: Sequence[Value]) -> list[Value]:
    inner, consts = _jax.open_jaxpr(jaxpr)
    values: dict[Any, Value] = dict(zip(inner.invars, args, strict=True))
    values.update((var, StackedArray(c)) for var, c in zip(inner.constvars, consts, strict=True))
    n_uses = _count_uses(inner)

    def read(atom: Any) -> Value:
        return (
            StackedArray(_jax.literal_value(atom))
            if isinstance(atom, _jax.Literal)
            else values[atom]
        )

    for eqn in inner.eqns:
        with _jax.source_of(eqn):
            outs = _equation(axes, eqn, [read(atom) for atom in eqn.invars])
        for var, out in zip(eqn.outvars, outs, strict=True):
            values[var] = out if n_uses[var] == 1 or isinstance(out, UnjoinedOutput) else force(out)
    return [read(atom) for atom in inner.outvars]


def _count_uses(jaxpr: Any) -> collections.Counter[Any]:
    atoms = [atom for eqn in jaxpr.eqns for atom in eqn.invars] + list(jaxpr.outvars)
    return collections.Counter(atom for atom in atoms if not isinstance(atom, _jax.Literal))


def _equation(axes: MeshAxes, eqn: Any, ins: list[Value]) -> Sequence[Value]:
    name, params = eqn.primitive.name, eqn.params
    if name in IDENTITY_COLLECTIVES:
        _check_constraint(axes, eqn)
        return ins[: len(eqn.outvars)]
    body = called_jaxpr(name, params)
    if body is not None:
        return _run(axes, body, ins)
    if name == "shard_map":
        return shard_map(axes, params, ins)
    ins = [force(value) if isinstance(value, _needed_now(name)) else value for value in ins]
    if name in COLLECTIVES:
        stuck.watch(axes, eqn)
    if name in SUM_COLLECTIVES and isinstance(ins[0], Deferred) and _is_over_mesh_alone(params):
        return [ins[0].psum(names_in(params["axes"]))]
    if len(eqn.outvars) == 1:
        kept_back = defer(
            axes, eqn.primitive, params, ins, getattr(eqn.outvars[0].aval, "dtype", None)
        )
        if kept_back is not None:
            return [kept_back]
    return _strict(axes, eqn, [force(value) for value in ins])


def _needed_now(name: str) -> tuple[type, ...]:
    """Return the kinds of value that must be computed before this primitive; others may wait."""
    return (UnjoinedOutput, Deferred) if name == "dot_general" else (UnjoinedOutput,)


def _is_over_mesh_alone(params: dict[str, Any]) -> bool:
    """Say whether a sum is over whole mesh axes: not in groups, and over no vmapped axis."""
    return params.get("axis_index_groups") is None and not any(
        isinstance(axis, int) for axis in params["axes"]
    )


def _strict(axes: MeshAxes, eqn: Any, ins: list[StackedArray]) -> list[StackedArray]:
    """Evaluate an equation whose operands are all there."""
    name, params = eqn.primitive.name, eqn.params
    if name in COLLECTIVES:
        return [COLLECTIVES[name](axes, *ins, **params)]
    if name == "axis_index":
        return [axis_index(axes, **params)]
    if name in control.RULES:
        return control.RULES[name](run, axes, eqn, ins)
    if name in effects.RULES:
        return effects.RULES[name](axes, eqn, ins)
    _refuse_unknown_collective(axes, eqn)
    return local(axes, eqn.primitive, params, ins)


def _refuse_unknown_collective(axes: MeshAxes, eqn: Any) -> None:
    named = [e.name for e in eqn.effects if isinstance(e, _jax.NamedAxisEffect)]
    # Not every collective declares that effect; all of them name their axes.
    named += [*names_in(eqn.params.get("axis_name", ())), *names_in(eqn.params.get("axes", ()))]
    over = [name for name in named if name in axes.sizes]
    if over:
        raise CannotSimulate(
            f"The primitive '{eqn.primitive.name}' communicates over mesh axis '{over[0]}', "
            "and shardlab does not know how.",
            where=_jax.source_line(eqn),
            fix="run this program on real devices, and report the primitive's name.",
        )


def _check_constraint(axes: MeshAxes, eqn: Any) -> None:
    """Refuse a constraint on a manual axis, as JAX's lowering does."""
    if eqn.primitive.name != "sharding_constraint":
        return
    spec = getattr(eqn.params["sharding"], "spec", None)
    used = boundary.mentioned(spec) & axes.manual if spec is not None else frozenset()
    if used:
        error = ManualAxisConstraint(
            f"with_sharding_constraint spec {spec} contains a manual axes {set(used)} of mesh.",
            where=_jax.source_line(eqn),
            fix="inside shard_map an array is already local; constrain it outside the body, or "
            "only over axes that shard_map leaves automatic.",
        )
        error.location = _jax.source_place(eqn)
        raise error
