"""Steps outside shard_map: global values shown shard by shard, with the compiler's collectives.

The value itself is computed once, globally. What each device holds of it is its slice by the
propagated sharding. Before an all-reduce of a product or a sum the devices hold partial sums: these
are computed from the shards of the operands, as the devices do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shardlab import _jax
from shardlab._jax.explicit_collectives import Entries, InsertedCollective
from shardlab.collectives.call import CollectiveCall
from shardlab.collectives.wire import wire_bytes
from shardlab.recording.collective_steps import record_collective
from shardlab.recording.sharding_plan import EquationShardings
from shardlab.simulator.interpreter.rules.local import apply_local
from shardlab.simulator.interpreter.shard_boundary import shard_input
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray
from shardlab.simulator.interpreter.step_observer import ObservedArray

if TYPE_CHECKING:
    from shardlab.recording.draft_records import DraftStep
    from shardlab.recording.recorder import Recorder

# Shardy's operations -> JAX's names; an all_slice sends nothing.
_OPERATIONS = {
    "all_reduce": "psum",
    "all_gather": "all_gather",
    "reduce_scatter": "psum_scatter",
    "all_to_all": "all_to_all",
    "collective_permute": "ppermute",
}
# Operations whose result, computed from shards, is this device's term of the sum, or one of the
# numbers of which the maximum is taken. Their parameters name dimensions and no sizes, so they are
# the same for a shard.
_SUMS_OF_SHARDS = ("dot_general", "reduce_sum")
_EXTREMA_OF_SHARDS = {"reduce_max": "pmax", "reduce_min": "pmin"}


def shard_globally(
    value: StackedArray, entries: Entries | None, recorder: Recorder
) -> StackedArray:
    """Return what each device holds of a global value; the value itself if that is not known."""
    sizes = dict(recorder.mesh)
    if entries is None or value.device_axes:
        return value
    for size, names in zip(value.array.shape, entries, strict=False):
        if any(name not in sizes for name in names):
            return value
        # XLA pads such a dimension; a slice of the value would not be what a device holds.
        if size % math.prod(sizes[name] for name in names):
            return value
    return shard_input(value, entries, MeshAxes(sizes=sizes))


def finish_global_equation(
    recorder: Recorder,
    axes: MeshAxes,
    eqn: Any,
    ins: Sequence[StackedArray],
    outs: Sequence[StackedArray],
    plan: EquationShardings,
) -> list[StackedArray]:
    """Record an equation with the collectives before and after it; return its outputs, numbered."""
    operands = _read_operands(recorder, axes, eqn, ins, plan)
    entries = list(plan.operands)
    for item in plan.explicit.collectives:
        if item.operand is not None and operands[item.operand] is not None:
            source = operands[item.operand]
            assert source is not None
            atom = eqn.invars[item.operand]
            moved = recorder.add_global(ins[item.operand], atom.aval, item.entries)
            _add_collective_step(recorder, axes, eqn, item, source, moved.value_id)
            operands[item.operand] = moved.value_id
            entries[item.operand] = item.entries
    reads = [value for value in operands if value is not None]
    after = [item for item in plan.explicit.collectives if item.operand is None]
    if len(outs) != 1 or not after:
        observed = [
            recorder.add_global(out, var.aval, entries)
            for out, var, entries in zip(outs, eqn.outvars, plan.results, strict=True)
        ]
        step = recorder.add_step(axes, eqn, reads, [value.value_id for value in observed])
        _set_flops(recorder, step, eqn, plan)
        return list(observed)
    first = _before_collectives(recorder, eqn, ins, outs[0], entries, plan, after)
    step = recorder.add_step(axes, eqn, reads, [first.value_id])
    _set_flops(recorder, step, eqn, plan)
    last = first
    for number, item in enumerate(after):
        is_last = number + 1 == len(after)
        entries_after = plan.results[0] if is_last else item.entries
        moved = recorder.add_global(outs[0], eqn.outvars[0].aval, entries_after)
        _add_collective_step(recorder, axes, eqn, item, last.value_id, moved.value_id)
        last = moved
    return [last]


def finish_placement(
    recorder: Recorder,
    axes: MeshAxes,
    eqn: Any,
    ins: Sequence[StackedArray],
    plan: EquationShardings,
) -> list[StackedArray]:
    """Record a sharding constraint, a reshard or a device_put: collectives, and no arithmetic."""
    (current,) = _read_operands(recorder, axes, eqn, ins[:1], plan)
    value = ins[0]
    if current is None:
        return list(ins[:1])
    for item in plan.explicit.collectives:
        moved = recorder.add_global(value, eqn.outvars[0].aval, item.entries)
        _add_collective_step(recorder, axes, eqn, item, current, moved.value_id)
        current = moved.value_id
    return [ObservedArray(value.array, value.device_axes, current)]


def _read_operands(
    recorder: Recorder,
    axes: MeshAxes,
    eqn: Any,
    ins: Sequence[StackedArray],
    plan: EquationShardings,
) -> list[int | None]:
    operands: list[int | None] = []
    for atom, value, entries in zip(eqn.invars, ins, plan.operands, strict=False):
        if isinstance(atom, _jax.Literal):
            operands.append(None)
        elif isinstance(value, ObservedArray):
            operands.append(value.value_id)
        else:
            operands.append(recorder.add_global(value, atom.aval, entries).value_id)
    return operands


def _before_collectives(
    recorder: Recorder,
    eqn: Any,
    ins: Sequence[StackedArray],
    out: StackedArray,
    entries: Sequence[Entries | None],
    plan: EquationShardings,
    after: Sequence[InsertedCollective],
) -> ObservedArray:
    """Return the result before the collectives after it: shards, or this device's partial sums."""
    aval = eqn.outvars[0].aval
    summed = {
        n for item in after if item.kind in ("all_reduce", "reduce_scatter") for n in item.axes
    }
    is_sum = eqn.primitive.name in _SUMS_OF_SHARDS
    if not summed or not (is_sum or eqn.primitive.name in _EXTREMA_OF_SHARDS):
        return recorder.add_global(out, aval, plan.explicit.result_entries)
    shards = [shard_globally(value, e, recorder) for value, e in zip(ins, entries, strict=True)]
    axes = MeshAxes(sizes=dict(recorder.mesh))
    (partial,) = apply_local(axes, eqn.primitive, eqn.params, shards)
    observed = recorder.add_global(out, aval, plan.explicit.result_entries, display=partial)
    if is_sum:
        recorder.values[observed.value_id].partial_over |= summed
    return observed


def _add_collective_step(
    recorder: Recorder, axes: MeshAxes, eqn: Any, item: InsertedCollective, reads: int, writes: int
) -> None:
    step = recorder.add_step(axes, eqn, [reads], [writes], item.kind)
    op = _OPERATIONS.get(item.kind)
    if op is None:
        return
    if op == "psum":
        op = _EXTREMA_OF_SHARDS.get(eqn.primitive.name, op)
    source = recorder.values[reads]
    sizes = dict(recorder.mesh)
    mesh_axes = item.axes or tuple(sizes)  # a permutation names no axes
    group_size = math.prod(sizes[name] for name in mesh_axes)
    step.call = CollectiveCall(
        op=op,
        mesh_axes=mesh_axes,
        shape=source.shape,
        dtype=source.dtype,
        payload_bytes=source.n_bytes,
        wire_bytes=wire_bytes(op, source.n_bytes, group_size),
        count=1,
        phase=step.scope.phase,
        group_size=group_size,
        origin="compiler",
    )
    step.collective = record_collective(step.call, recorder.mesh, recorder.timer, reads, writes)


def _set_flops(recorder: Recorder, step: DraftStep, eqn: Any, plan: EquationShardings) -> None:
    """Divide the FLOPs among the devices that share the work; replicas repeat it."""
    names = {
        name
        for entry in plan.explicit.result_entries or (plan.results or ((),))[0] or ()
        for name in entry
    }
    for item in plan.explicit.collectives:
        if item.operand is None and item.kind in ("all_reduce", "reduce_scatter"):
            names |= set(item.axes)
    sizes = dict(recorder.mesh)
    n_shares = math.prod(sizes.get(name, 1) for name in names)
    step.flops = -(-step.flops // n_shares)
