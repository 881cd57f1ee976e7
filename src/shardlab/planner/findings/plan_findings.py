"""All findings about a plan, in the order in which they are reported."""

from __future__ import annotations

from collections.abc import Iterable

from shardlab.findings.finding import Finding
from shardlab.planner.findings.divisibility import find_imbalance, find_indivisible
from shardlab.planner.findings.finding_limits import Limits
from shardlab.planner.findings.memory_fit import find_low_headroom, find_memory_overflow
from shardlab.planner.findings.mesh_usage import (
    find_embedding_sharding,
    find_replicated_kv_heads,
    find_unused_axes,
)
from shardlab.planner.findings.replicated_tensors import find_replicated, find_replicated_states
from shardlab.planner.findings.unsharded_tensors import find_unsharded
from shardlab.planner.plan import Plan
from shardlab.planner.plan_request import PlanRequest
from shardlab.planner.remedies.remedy import Replan, find_remedies


def plan_findings(
    plan: Plan,
    request: PlanRequest,
    replan: Replan,
    limits: Limits,
    *,
    rule_findings: Iterable[Finding] = (),
) -> tuple[Finding, ...]:
    """Return what a user should know about a plan before booking the devices.

    `replan` plans the same request with other options, to find what would make it fit. Tensors in
    `rule_findings`, the lint of the rules, are not reported again.
    """
    kv_heads = find_replicated_kv_heads(plan, request)
    reported = {path for finding in rule_findings for path in finding.details.get("paths", ())}
    # The kv heads finding already covers the projections of keys and values.
    if kv_heads:
        reported |= {row.path for row in plan.rows if "kv_heads" in (row.dim_names or ())}
    unsharded = find_unsharded(plan, limits, reported)
    reported |= {path for finding in unsharded for path in finding.details["paths"]}
    remedies = [] if plan.fits is not False else find_remedies(plan, request, replan)
    # Rules that shard nothing at all are one finding, plan.replicated, not one per mesh axis.
    is_sharded = any(array.spec.mesh_axes for row in plan.rows for array in row.arrays)
    recommends_zero = any(
        remedy.request.strategy is not None
        and remedy.request.strategy != request.strategy
        and remedy.request.strategy.zero_stage
        for remedy in remedies
    )
    return (
        *find_memory_overflow(plan, request, remedies),
        *find_low_headroom(plan, limits),
        *find_indivisible(plan, request),
        *find_imbalance(plan, request, limits),
        *find_replicated(plan, request, limits, reported),
        *unsharded,
        *(find_unused_axes(plan, request) if is_sharded or request.strategy else ()),
        *kv_heads,
        *find_embedding_sharding(plan, request),
        *(() if recommends_zero else find_replicated_states(plan, request, limits)),
    )
