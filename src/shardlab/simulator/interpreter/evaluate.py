"""Evaluates the jaxpr of a shard_map for all devices at once, with explicit device axes.

The jaxpr is JAX's own: tracing, checks, differentiation, vmap and remat happened before, so exactly
the program that real devices would run is simulated. Each equation goes through one of the rules in
`rules/`, which bind ordinary JAX primitives on arrays with device axes (`stacked_array.py`) in
whatever trace is current. Under jit the whole mesh therefore becomes one single-device program.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from shardlab import _jax
from shardlab.errors import CannotSimulate, Deadlock, ManualAxisConstraint
from shardlab.simulator.interpreter.auto_sums import AutoSum, find_auto_sums
from shardlab.simulator.interpreter.deadlock import check_all_devices_arrive
from shardlab.simulator.interpreter.partial_sums import (
    DeferredProduct,
    Value,
    defer_product,
    materialize,
)
from shardlab.simulator.interpreter.repairs import active_repairs, evaluate_repaired
from shardlab.simulator.interpreter.replicas import (
    OutputSource,
    ReplicatedOutput,
    compare_replicas,
    finish_output,
    output_name,
)
from shardlab.simulator.interpreter.rules.callbacks import CALLBACKS
from shardlab.simulator.interpreter.rules.calls import called_jaxpr
from shardlab.simulator.interpreter.rules.collectives import (
    COLLECTIVES,
    IDENTITY_COLLECTIVES,
    PLACEMENTS,
    SUM_COLLECTIVES,
)
from shardlab.simulator.interpreter.rules.control_flow import CONTROL_FLOW
from shardlab.simulator.interpreter.rules.local import apply_local
from shardlab.simulator.interpreter.rules.permutations import axis_index
from shardlab.simulator.interpreter.rules.reductions import mesh_axis_names
from shardlab.simulator.interpreter.rules.unrolled_control_flow import UNROLLED_CONTROL_FLOW
from shardlab.simulator.interpreter.shard_boundary import (
    ShardedOutput,
    place_partial_sum,
    shard_input,
    spec_axes,
)
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray
from shardlab.simulator.interpreter.step_observer import StepObserver, current_observer
from shardlab.simulator.interpreter.unreduced import (
    REDUCTIONS,
    reshard,
    split_reduced_dims,
    unreduced_axes,
    with_device_axes,
)


def evaluate_shard_map(
    axes: MeshAxes,
    params: dict[str, Any],
    ins: Sequence[Value],
    *,
    keep_partial_sums: bool = False,
    observed_eqn: Any = None,
) -> list[ShardedOutput]:
    """Evaluate one shard_map equation: shard the inputs and run the body; gathering is lazy.

    An `unreduced` array is a sum whose terms are on different devices. Outside the shard_map it is
    represented by the sum; with `keep_partial_sums` (and for inputs that have them) it keeps its
    device axes. `observed_eqn` is the equation, if its steps are observed.
    """
    newly_manual = frozenset(params["newly_manual_axes"])
    inner = axes.enter_shard_map(dict(params["mesh"].shape), newly_manual)
    shards = [
        _enter_body(value, spec, inner, newly_manual)
        for value, spec in zip(ins, params["in_specs"], strict=True)
    ]
    observer = current_observer() if observed_eqn is not None else None
    if observer is not None:
        shards = observer.enter_shard_map(inner, observed_eqn, ins, shards)
        with observer.inside(observed_eqn):
            outs = evaluate_jaxpr(inner, params["jaxpr"], shards)
        value_ids = observer.leave_shard_map(inner, observed_eqn, outs)
    else:
        outs = evaluate_jaxpr(inner, params["jaxpr"], shards)
        value_ids = [None] * len(outs)
    body, file, line = _jax.function_location(params["jaxpr"])
    outputs: list[ShardedOutput] = []
    to_compare: list[ReplicatedOutput] = []
    for index, (value, spec) in enumerate(zip(outs, params["out_specs"], strict=True)):
        source = OutputSource(
            index=index,
            n_outputs=len(outs),
            body=body,
            file=file,
            line=line,
            name=output_name(params["jaxpr"], index),
        )
        finished = finish_output(
            value, spec, inner, newly_manual, keep_partial_sums, source, to_compare
        )
        outputs.append(
            ShardedOutput(
                shards=finished,
                spec=spec,
                inner=inner,
                newly_manual=newly_manual,
                value_id=value_ids[index],
            )
        )
    # The observer has compared the copies already.
    if observer is None:
        compare_replicas(to_compare, inner.size(newly_manual))
    return outputs


def _enter_body(
    value: Value, spec: Any, inner: MeshAxes, newly_manual: frozenset[str]
) -> StackedArray:
    """Give each device its shard; an output of another shard_map may still be in shards."""
    if isinstance(value, ShardedOutput) and value.matches(spec, inner, newly_manual):
        return value.shards
    full = materialize(value)
    # Unreduced axes without a device axis: the caller passed the sum, so split it into terms.
    summed = frozenset(spec.unreduced) - set(full.device_axes)
    return place_partial_sum(shard_input(full, spec, inner), summed, inner)


def evaluate_jaxpr(axes: MeshAxes, jaxpr: Any, args: Sequence[StackedArray]) -> list[StackedArray]:
    """Evaluate a jaxpr on every device at once."""
    return [materialize(value) for value in _evaluate_jaxpr_lazily(axes, jaxpr, args)]


def evaluate_equation(axes: MeshAxes, eqn: Any, ins: Sequence[StackedArray]) -> list[StackedArray]:
    """Evaluate one equation on every device at once."""
    return [materialize(value) for value in _evaluate_equation_lazily(axes, eqn, list(ins))]


def _evaluate_jaxpr_lazily(axes: MeshAxes, jaxpr: Any, args: Sequence[Value]) -> list[Value]:
    """Evaluate a jaxpr; products whose psum may follow, and gathers, can stay pending."""
    inner, consts = _jax.open_jaxpr(jaxpr)
    values: dict[Any, Value] = dict(zip(inner.invars, args, strict=True))
    values.update((var, StackedArray(c)) for var, c in zip(inner.constvars, consts, strict=True))
    n_uses = _count_uses(inner)

    def read_atom(atom: Any) -> Value:
        return (
            StackedArray(_jax.literal_value(atom))
            if isinstance(atom, _jax.Literal)
            else values[atom]
        )

    auto_sums = find_auto_sums(inner) if axes.keeps_partial_sums else {}
    for index, eqn in enumerate(inner.eqns):
        # New operations get the user's source line: errors and XLA metadata point there.
        with _jax.source_of(eqn):
            ins = [read_atom(atom) for atom in eqn.invars]
            if axes.keeps_partial_sums:
                outs = _evaluate_with_partial_sums(axes, eqn, ins, auto_sums.get(index))
            else:
                outs = _evaluate_equation_lazily(axes, eqn, ins)
        for var, out in zip(eqn.outvars, outs, strict=True):
            # A product with several uses is computed now, once; deferring would compute it per use.
            is_lazy = n_uses[var] == 1 or isinstance(out, ShardedOutput)
            values[var] = out if is_lazy else materialize(out)
    return [read_atom(atom) for atom in inner.outvars]


def _evaluate_with_partial_sums(
    axes: MeshAxes, eqn: Any, ins: list[Value], auto_sum: AutoSum | None
) -> Sequence[Value]:
    """Evaluate an equation outside of shard_map that may read or make unreduced values."""
    if eqn.primitive.name == "reshard":
        outs: Sequence[Value] = [reshard(axes, eqn, materialize(ins[0]))]
    elif auto_sum is not None:
        shards = auto_sum.split_operands(axes, [materialize(value) for value in ins])
        outs = _evaluate_equation_lazily(axes, eqn, list(shards))
    elif eqn.primitive.name in REDUCTIONS:
        shards = split_reduced_dims(axes, eqn, [materialize(value) for value in ins])
        outs = _evaluate_equation_lazily(axes, eqn, list(shards))
    else:
        outs = _evaluate_equation_lazily(axes, eqn, ins)
    return [
        with_device_axes(axes, materialize(out), var.aval) if unreduced_axes(var.aval) else out
        for out, var in zip(outs, eqn.outvars, strict=True)
    ]


def _count_uses(jaxpr: Any) -> collections.Counter[Any]:
    atoms = [atom for eqn in jaxpr.eqns for atom in eqn.invars] + list(jaxpr.outvars)
    return collections.Counter(atom for atom in atoms if not isinstance(atom, _jax.Literal))


def _evaluate_equation_lazily(axes: MeshAxes, eqn: Any, ins: list[Value]) -> Sequence[Value]:
    name, params = eqn.primitive.name, eqn.params
    observer = current_observer()
    if observer is not None:
        return _evaluate_observed(observer, axes, eqn, ins)
    if repairs := active_repairs(eqn):
        values = [materialize(value) for value in ins]
        return evaluate_repaired(repairs, axes, eqn, values, _evaluate_equation_now)
    # Primitives are matched by name: several of them are private, or new in JAX 0.12.
    if name in IDENTITY_COLLECTIVES:
        _check_constraint(axes, eqn)
        return ins[: len(eqn.outvars)]
    body = called_jaxpr(name, params)
    if body is not None:
        # Inline, so that a product inside a jit or remat can meet a psum outside of it.
        return _evaluate_jaxpr_lazily(axes, body, ins)
    if name == "shard_map":
        return evaluate_shard_map(axes, params, ins, keep_partial_sums=axes.keeps_partial_sums)
    ins = [materialize(value) if isinstance(value, _eager_kinds(name)) else value for value in ins]
    if name in COLLECTIVES:
        check_all_devices_arrive(axes, eqn)
    # The pending product meets its psum: sum inside the contraction (see `partial_sums`).
    if name in SUM_COLLECTIVES and isinstance(ins[0], DeferredProduct) and _is_plain_sum(params):
        return [ins[0].psum(mesh_axis_names(params["axes"]))]
    if len(eqn.outvars) == 1:
        dtype = getattr(eqn.outvars[0].aval, "dtype", None)
        pending = defer_product(axes, eqn.primitive, params, ins, dtype)
        if pending is not None:
            return [pending]
    return _evaluate_equation_now(axes, eqn, [materialize(value) for value in ins])


def _evaluate_observed(
    observer: StepObserver, axes: MeshAxes, eqn: Any, ins: list[Value]
) -> Sequence[Value]:
    """Evaluate an equation at once, on concrete values, and report it to the observer."""
    name, params = eqn.primitive.name, eqn.params
    if name in IDENTITY_COLLECTIVES:
        _check_constraint(axes, eqn)
        if name in PLACEMENTS and not axes.manual:
            return observer.finish_placement(axes, eqn, [materialize(value) for value in ins])
        return ins[: len(eqn.outvars)]
    body = called_jaxpr(name, params)
    if body is not None and observer.is_opaque(eqn):
        values = [materialize(value) for value in ins]
        with observer.paused():
            outs = evaluate_jaxpr(axes, body, values)
        return observer.finish_equation(axes, eqn, values, outs)
    if body is not None:
        with observer.inside(eqn):
            return _evaluate_jaxpr_lazily(axes, body, ins)
    if name == "shard_map":
        return evaluate_shard_map(
            axes, params, ins, keep_partial_sums=axes.keeps_partial_sums, observed_eqn=eqn
        )
    values = [materialize(value) for value in ins]
    if name in UNROLLED_CONTROL_FLOW:
        return UNROLLED_CONTROL_FLOW[name](observer, evaluate_jaxpr, axes, eqn, values)
    if name in COLLECTIVES:
        try:
            check_all_devices_arrive(axes, eqn, now=True)
        except Deadlock as deadlock:
            observer.block(axes, eqn, values, deadlock)
            raise
    outs = _evaluate_equation_now(axes, eqn, values)
    return observer.finish_equation(axes, eqn, values, outs)


def _eager_kinds(name: str) -> tuple[type, ...]:
    """Return the kinds of value that this primitive needs computed; other kinds may be pending."""
    # A product of a pending product is not linear in devices' partial sums.
    return (ShardedOutput, DeferredProduct) if name == "dot_general" else (ShardedOutput,)


def _is_plain_sum(params: dict[str, Any]) -> bool:
    """Return whether a sum is over full mesh axes: no groups, and no vmapped (int) axes."""
    return params.get("axis_index_groups") is None and not any(
        isinstance(axis, int) for axis in params["axes"]
    )


def _evaluate_equation_now(axes: MeshAxes, eqn: Any, ins: list[StackedArray]) -> list[StackedArray]:
    """Evaluate an equation whose operands are all computed."""
    name, params = eqn.primitive.name, eqn.params
    if name in COLLECTIVES:
        return [COLLECTIVES[name](axes, *ins, **params)]
    if name == "axis_index":
        return [axis_index(axes, **params)]
    if name in CONTROL_FLOW:
        return CONTROL_FLOW[name](evaluate_jaxpr, axes, eqn, ins)
    if name in CALLBACKS:
        return CALLBACKS[name](axes, eqn, ins)
    if name == "inspect_sharding":
        return []  # reported when the program was lowered for its devices (`_jax/partitioner.py`)
    _reject_unknown_collective(axes, eqn)
    return apply_local(axes, eqn.primitive, params, ins)


def _reject_unknown_collective(axes: MeshAxes, eqn: Any) -> None:
    """Raise for a primitive that communicates in a way we have no rule for, rather than guess."""
    named = [e.name for e in eqn.effects if isinstance(e, _jax.NamedAxisEffect)]
    # Not every collective declares that effect; all of them name their axes.
    for param in ("axis_name", "axes"):
        named += mesh_axis_names(eqn.params.get(param, ()))
    mesh_axes = [name for name in named if name in axes.sizes]
    if mesh_axes:
        raise CannotSimulate(
            f"The primitive '{eqn.primitive.name}' communicates over mesh axis '{mesh_axes[0]}', "
            "and shardlab has no rule for it.",
            where=_jax.source_line(eqn),
            fix="run this program on real devices, and report the primitive's name.",
        )


def _check_constraint(axes: MeshAxes, eqn: Any) -> None:
    """Reject a sharding constraint over a manual axis, as JAX's lowering does."""
    if eqn.primitive.name != "sharding_constraint":
        return
    spec = getattr(eqn.params["sharding"], "spec", None)
    manual = spec_axes(spec) & axes.manual if spec is not None else frozenset()
    if manual:
        error = ManualAxisConstraint(
            # JAX's own sentence: callers may match it.
            f"with_sharding_constraint spec {spec} contains a manual axes {set(manual)} of mesh.",
            where=_jax.source_line(eqn),
            fix="inside shard_map an array is already local; constrain it outside the body, or "
            "only over axes that shard_map leaves automatic.",
        )
        error.location = _jax.user_location(eqn)
        raise error
