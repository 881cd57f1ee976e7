"""The cheapest change that makes a plan fit, found by planning each candidate again.

Changes are tried in the order of what they cost: first some communication (ZeRO stages, sharding
what is replicated, the same devices in another mesh), then compute (remat), time (gradient
accumulation), precision (bf16 moments, an int8 cache), and last fewer devices that divide the
model, more devices, or a smaller batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from shardlab.errors import LabError
from shardlab.planner.findings.divisibility import find_indivisible, indivisible_dims
from shardlab.planner.findings.mesh_usage import unused_axes
from shardlab.planner.findings.replicated_tensors import best_sharding
from shardlab.planner.findings.unsharded_tensors import excess_bytes
from shardlab.planner.memory.workload import REMAT_POLICIES, Workload
from shardlab.planner.memory.workload_shards import workload_shards
from shardlab.planner.plan import Plan, spec_json
from shardlab.planner.plan_request import PlanRequest
from shardlab.planner.remedies.mesh_remedies import (
    Proposals,
    divisible_workload,
    propose_fewer_devices,
    propose_more_devices,
    propose_new_axis,
    propose_other_splits,
    propose_tensor_axis_for_serving,
    propose_tensor_axis_for_training,
)
from shardlab.planner.rules.rules import PathSpec, Rules
from shardlab.planner.strategies.axis_roles import mesh_axis_roles
from shardlab.planner.strategies.strategy import make_strategy
from shardlab.sharding.dtype import Dtype, parse_dtype
from shardlab.sharding.mesh import mesh_text
from shardlab.sharding.spec import Spec

Replan = Callable[[PlanRequest], Plan]
RemedyKind = Callable[[PlanRequest, Plan], Proposals]
_MAX_DEVICE_GROWTH = 4  # more devices are only proposed next to a free remedy up to this factor
_SMALL_EXCESS = 0.05  # fraction of a device's bytes that a strategy could not shard
_FINE_STEPS = 64  # sequences per device, below which each number is tried
_MIN_EFFECT = 0.99  # a remedy must reduce the bytes to less than this fraction
_MAX_SPECS = 8  # replicated rows that are sharded by path
_MAX_MICROBATCHES = 4096
_REMAT_ORDER = tuple(REMAT_POLICIES)  # each saves less than the one before


@dataclass(frozen=True)
class Remedy:
    """A change of a request, as text, and the plan it gives."""

    text: str
    request: PlanRequest
    plan: Plan

    def to_json(self, before: PlanRequest) -> dict[str, Any]:
        """Return the text, the bytes, and the options that differ from the request `before`."""
        after, options = self.request, dict[str, Any]()
        if after.mesh != before.mesh:
            options["mesh"] = mesh_text(after.mesh.shape.items())
        if after.strategy != before.strategy:
            options["strategy"] = None if after.strategy is None else after.strategy.name
        if (moments := after.policy.moments) != before.policy.moments and moments is not None:
            options["moments"] = moments.short
        if after.workload is not None and after.workload != before.workload:
            options["workload"] = _changed_fields(before.workload, after.workload)
        if after.rules is not before.rules:
            n_new = len(after.rules.specs) - len(before.rules.specs)
            new_specs = after.rules.specs[: max(n_new, 0)]
            options["specs"] = [[spec.pattern, spec_json(spec.spec)] for spec in new_specs] or None
        return {
            "words": self.text,
            "bytes_per_device": self.plan.bytes_per_device,
            "options": options,
        }


def _changed_fields(before: Workload | None, after: Workload) -> dict[str, Any]:
    changes = {}
    for field in fields(Workload):
        value = getattr(after, field.name)
        if before is None or value != getattr(before, field.name):
            changes[field.name] = value.short if isinstance(value, Dtype) else value
    return changes


def find_remedies(plan: Plan, request: PlanRequest, replan: Replan) -> list[Remedy]:
    """Return the changes that each make the plan fit, the cheapest first.

    If none is enough alone, it is one remedy that combines several; empty if even that does not
    help. One that leaves much unsharded is returned only if there is no other.
    """
    # If a spec is indivisible, JAX rejects every variant of the plan: only other specs can help.
    is_divisible = next(indivisible_dims(plan, request), None) is None
    remedies: list[Remedy] = []
    for propose in _remedy_kinds(plan) if is_divisible else (_propose_strategies,):
        # In the order of _REMEDY_KINDS the remedies before these need no other devices or batch.
        if remedies and propose in _LAST_RESORTS:
            continue  # the same devices are enough
        proposals = propose(request, plan)
        if remedies and propose is propose_more_devices:
            proposals = filter(partial(_is_moderate_growth, request), proposals)
        if (remedy := _first_that_fits(proposals, request, replan)) is not None:
            remedies.append(remedy)
    clean = [remedy for remedy in remedies if _is_clean(remedy, request)]
    if clean or remedies or not is_divisible:
        return clean or remedies[:1]
    if combined := _combine_remedies(plan, request, replan):
        return combined
    last = _first_that_fits(propose_tensor_axis_for_training(request, plan), request, replan)
    return [] if last is None else [last]


def _remedy_kinds(plan: Plan) -> tuple[RemedyKind, ...]:
    """Return what to try, in order: if sizes are indivisible, other splits of the mesh first."""
    if _unsharded_excess(plan) <= _SMALL_EXCESS * plan.bytes_per_device:
        return _REMEDY_KINDS
    rest = (propose for propose in _REMEDY_KINDS if propose is not propose_other_splits)
    return (propose_other_splits, *rest)


def _unsharded_excess(plan: Plan) -> int:
    """Return what a device stores because its strategy could not shard everything."""
    return sum(excess_bytes(skipped, row) for row in plan.rows for skipped in row.skipped)


def _is_moderate_growth(request: PlanRequest, proposal: tuple[str, PlanRequest]) -> bool:
    """Return whether a proposal is the same with a few times the devices."""
    larger = proposal[1]
    is_same = larger.strategy == request.strategy
    return is_same and larger.mesh.n_devices <= _MAX_DEVICE_GROWTH * request.mesh.n_devices


def _first_that_fits(
    proposals: Iterable[tuple[str, PlanRequest]], request: PlanRequest, replan: Replan
) -> Remedy | None:
    """Return the first that fits with everything sharded, else the first that fits."""
    fallback = None
    for text, changed in proposals:
        plan = _try_plan(changed, replan)
        if plan is not None and plan.fits:
            remedy = Remedy(text, changed, plan)
            if _is_clean(remedy, request):
                return remedy
            fallback = fallback or remedy
    return fallback


def _is_clean(remedy: Remedy, request: PlanRequest) -> bool:
    """Return whether another mesh leaves little unsharded and no mesh axis unused."""
    plan, mesh = remedy.plan, remedy.request.mesh
    if mesh == request.mesh:
        return True
    is_sharded = _unsharded_excess(plan) <= _SMALL_EXCESS * plan.bytes_per_device
    return is_sharded and not unused_axes(plan.rows, mesh)


def _combine_remedies(plan: Plan, request: PlanRequest, replan: Replan) -> list[Remedy]:
    """Apply the best of each kind, one after the other, until the plan fits.

    Other device counts and a smaller batch do not help unless they are enough by themselves.
    """
    texts: list[str] = []
    for propose in _REMEDY_KINDS:
        best: Remedy | None = None
        for text, changed in propose(request, plan):
            changed_plan = _try_plan(changed, replan)
            limit = best.plan.bytes_per_device if best else _MIN_EFFECT * plan.bytes_per_device
            if changed_plan is not None and changed_plan.bytes_per_device < limit:
                best = Remedy(text, changed, changed_plan)
                if changed_plan.fits:
                    return [Remedy(" and ".join([*texts, text]), changed, changed_plan)]
        # Keep the best of this kind and continue from there, greedily.
        if best is not None and propose not in _NOT_COMBINED:
            texts.append(best.text)
            request, plan = best.request, best.plan
    return []


def _try_plan(request: PlanRequest, replan: Replan) -> Plan | None:
    """Return the plan, or None if the options do not go together or JAX would reject them."""
    try:
        plan = replan(request)
        return None if find_indivisible(plan, request) else plan
    except LabError:
        return None


def _propose_zero_stages(request: PlanRequest, plan: Plan) -> Proposals:
    """Shard states, gradients and parameters over batch axes; parameters over an unused axis."""
    strategy = request.strategy
    if strategy is None:
        addition = "" if request.rules.is_empty else " on top of the rules"
        for stage in (1, 2) if request.is_training else ():
            zero = make_strategy((), stage)
            yield f"strategy {zero.name}{addition}", replace(request, strategy=zero)
        return
    # Inference has neither states nor gradients: only stage 3 saves anything.
    first_stage = strategy.zero_stage + 1 if request.is_training else 3
    candidates = [make_strategy(strategy.parts, stage) for stage in range(first_stage, 4)]
    for role, part in (("tensor", "tensor"), ("stage", "pipeline")):
        if role in mesh_axis_roles(request.mesh) and part not in strategy.parts:
            candidates.append(make_strategy([*strategy.parts, part], strategy.zero_stage))
    for candidate in candidates:
        yield f"strategy {candidate.name}", replace(request, strategy=candidate)


def _propose_path_specs(request: PlanRequest, plan: Plan) -> Proposals:
    """Shard the rows that every device replicates, the largest first."""
    if request.strategy is not None:
        return
    n_devices, least = request.mesh.n_devices, (1 - _MIN_EFFECT) * plan.bytes_per_device
    rows = [
        row
        for row in plan.rows
        if row.parameter.n_replicas == n_devices > 1 and row.bytes_per_device > least
    ]
    rows = sorted(rows, key=lambda row: -row.bytes_per_device)[:_MAX_SPECS]
    specs: list[PathSpec] = []
    for row in rows:
        if (sharding := best_sharding(row, request.mesh)) is not None:
            dim, names = sharding
            entry = names[0] if len(names) == 1 else names
            specs.append(PathSpec(pattern=row.path, spec=Spec(*(None,) * dim, entry)))
            # Try 1, 2, 4 and 8 rows: the fewest changed rules that fit.
            if len(specs) not in (1, 2, 4, 8) and row is not rows[-1]:
                continue  # each proposal is a plan of its own
            rules = replace(request.rules, specs=(*specs, *request.rules.specs))
            count_note = f" and {len(specs) - 1} more" if len(specs) > 1 else ""
            text = f"shard '{specs[0].pattern}' as {specs[0].spec}{count_note}"
            yield text, replace(request, rules=rules)


def _propose_strategies(request: PlanRequest, plan: Plan) -> Proposals:
    """A strategy instead of rules: `--rules-to` writes the rules that it stands for."""
    roles = mesh_axis_roles(request.mesh)
    if request.strategy is not None or {"data", "fsdp"}.isdisjoint(roles):
        return
    parts = [part for part in ("expert", "tensor") if part in roles]
    # fsdp needs an fsdp or data axis; zero3 also shards over all other batch axes.
    for stage in (0, 3):
        strategy = make_strategy([*parts, "fsdp"], stage)
        instead = "" if request.rules.is_empty else " instead of the rules"
        changed = replace(request, strategy=strategy, rules=Rules())
        yield f"strategy {strategy.name}{instead}", changed


def _propose_remat(request: PlanRequest, plan: Plan) -> Proposals:
    if (work := request.workload) is None or not request.is_training:
        return
    # A number of checkpoints is not in the order: every policy after "none" is tried.
    position = _REMAT_ORDER.index(work.remat) if work.remat in _REMAT_ORDER else 0
    for policy in _REMAT_ORDER[position + 1 :]:
        yield f"remat {policy}", replace(request, workload=replace(work, remat=policy))


def _propose_microbatches(request: PlanRequest, plan: Plan) -> Proposals:
    """The largest microbatch first: the smaller, the less a device computes at once."""
    if (work := request.workload) is None or not request.is_training:
        return
    n_shards = workload_shards(request.mesh).batch.n_shards
    present_size = work.microbatch or work.batch
    for n_steps in range(2, min(work.batch // n_shards, _MAX_MICROBATCHES) + 1):
        size, remainder = divmod(work.batch, n_steps)
        if not remainder and size < present_size and size % n_shards == 0:
            text = f"microbatch {size:,} ({n_steps} gradient accumulation steps)"
            yield text, replace(request, workload=replace(work, microbatch=size))


def _propose_precision(request: PlanRequest, plan: Plan) -> Proposals:
    if not request.is_training:
        work = request.workload
        if work is not None and work.cache_dtype.bits > 8:
            int8_work = replace(work, cache_dtype=parse_dtype("int8"))
            yield "an int8 KV cache", replace(request, workload=int8_work)
    # None: moments have the dtype of parameters, which may be f32.
    elif request.policy.moments is None or request.policy.moments.bits > 16:
        policy = replace(request.policy, moments=parse_dtype("bf16"))
        yield "bf16 moments", replace(request, policy=policy)


def _propose_divisible_batch(request: PlanRequest, plan: Plan) -> Proposals:
    """A divisible batch, alone and with one more change, if the present one is not divisible."""
    work = request.workload and divisible_workload(request.mesh, request.workload)
    if not work or work == request.workload:
        return
    changed, batch_text = replace(request, workload=work), f"batch {work.batch:,}"
    yield batch_text, changed
    for propose in (
        _propose_zero_stages,
        _propose_remat,
        _propose_microbatches,
        _propose_precision,
    ):
        for text, further in propose(changed, plan):
            yield f"{batch_text} and {text}", further


def _propose_smaller_batch(request: PlanRequest, plan: Plan) -> Proposals:
    """Serving only: in training a microbatch has the same effect and keeps the batch."""
    if (work := request.workload) is None or request.is_training:
        return
    n_shards = workload_shards(request.mesh).batch.n_shards
    per_device = work.batch // n_shards
    while per_device > 1:
        # Large batches shrink by a quarter: each proposal is a plan of its own.
        per_device = per_device - 1 if per_device <= _FINE_STEPS else per_device * 3 // 4
        size = per_device * n_shards
        yield f"batch {size:,}", replace(request, workload=replace(work, batch=size))


_REMEDY_KINDS: tuple[RemedyKind, ...] = (
    propose_tensor_axis_for_serving,
    _propose_zero_stages,
    _propose_path_specs,
    _propose_strategies,
    propose_other_splits,
    _propose_remat,
    _propose_microbatches,
    _propose_precision,
    propose_fewer_devices,
    _propose_divisible_batch,
    propose_new_axis,
    propose_more_devices,
    _propose_smaller_batch,
)
_LAST_RESORTS = (propose_fewer_devices, _propose_divisible_batch, propose_new_axis)
_NOT_COMBINED = (
    propose_other_splits,
    propose_fewer_devices,
    propose_new_axis,
    propose_more_devices,
    _propose_smaller_batch,
)
