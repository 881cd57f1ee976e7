"""Is something large replicated: tensors while others are sharded, or optimizer states?"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import prod

from shardlab._text.units import bytes_text
from shardlab.findings.finding import Finding
from shardlab.planner.findings.finding_limits import Limits
from shardlab.planner.findings.plan_finding_codes import make_finding
from shardlab.planner.plan import DeviceBytes, Plan, PlanRow
from shardlab.planner.plan_request import PlanRequest
from shardlab.planner.strategies.axis_roles import batch_axes, mesh_axis_roles
from shardlab.planner.strategies.strategy import strategy_name
from shardlab.sharding.mesh import Mesh

_MAX_ROWS = 5  # listed in one finding


def find_replicated(
    plan: Plan, request: PlanRequest, limits: Limits, reported_paths: Collection[str] = ()
) -> list[Finding]:
    """Return one finding for all rows that every device replicates.

    Replicas of everything are what a strategy such as data-parallel is for, so they are not
    reported; the same by rules that shard nothing may be a mistake. Rows of a rule with a reason
    become an info finding with that reason: it may have been written for smaller tensors.
    """
    n_devices = request.mesh.n_devices
    if n_devices == 1 or not plan.rows:
        return []
    replicated = [row for row in plan.rows if row.parameter.n_replicas == n_devices]
    if len(replicated) == len(plan.rows):
        if request.strategy is not None:
            return []
        return _nothing_sharded_finding(plan, n_devices, limits, reported_paths)
    # With gradients and states: that is what a device could save.
    large = sorted(
        (
            row
            for row in replicated
            if row.bytes_per_device >= limits.replicated_bytes and row.path not in reported_paths
        ),
        key=lambda row: -row.bytes_per_device,
    )
    intended = [row for row in large if _rule_reason(row, plan)]
    unexplained = [row for row in large if not _rule_reason(row, plan)]
    findings = []
    if unexplained:
        findings.append(_replicated_finding(unexplained, plan, request))
    if intended:
        findings.append(replace(_replicated_finding(intended, plan, request), severity="info"))
    return findings


def _rule_reason(row: PlanRow, plan: Plan) -> str:
    """Return the reason that the user wrote next to the rule of a row."""
    return "" if row.rule_index is None else plan.rules[row.rule_index].reason


def best_sharding(row: PlanRow, mesh: Mesh) -> tuple[int, tuple[str, ...]] | None:
    """Return the dimension and the mesh axes that would shard a replicated row most.

    A vocabulary comes last: `plan.embedding_sharding` explains why.
    """
    names = [name for name in mesh.axis_names if mesh.shape[name] > 1]
    largest_first = sorted(names, key=lambda name: -mesh.shape[name])
    # All axes together give the smallest shard, then single axes, the largest first.
    for axes in (tuple(names), *((name,) for name in largest_first)):
        n_shards = prod(mesh.shape[name] for name in axes)
        for dim in _dims_by_size(row):
            if row.parameter.shape[dim] % n_shards == 0:
                return dim, axes
    return None


def _dims_by_size(row: PlanRow) -> list[int]:
    shape = row.parameter.shape
    names = row.dim_names or (None,) * len(shape)
    dims = (dim for dim, size in enumerate(shape) if size)
    return sorted(dims, key=lambda dim: (names[dim] == "vocab", -shape[dim]))


def _replicated_finding(rows: list[PlanRow], plan: Plan, request: PlanRequest) -> Finding:
    n_devices, total = request.mesh.n_devices, sum(row.bytes_per_device for row in rows)
    lines = [_replicated_line(row, plan, request) for row in rows[:_MAX_ROWS]]
    if len(rows) > _MAX_ROWS:
        lines.append(f"and {len(rows) - _MAX_ROWS} more rows")
    subject = "One row of tensors is" if len(rows) == 1 else f"{len(rows)} rows of tensors are"
    return make_finding(
        "plan.replicated",
        f"{subject} replicated on all {n_devices:,} devices, {bytes_text(total)} per device, "
        f"while others are sharded.",
        _replicated_fix(rows[0], request),
        shows=tuple(lines),
        details={"paths": [row.path for row in rows], "bytes_per_device": total},
    )


def _replicated_line(row: PlanRow, plan: Plan, request: PlanRequest) -> str:
    redundant = row.bytes_per_device * (request.mesh.n_devices - 1)
    line = (
        f"{row.path} ×{row.n_tensors}: {bytes_text(row.bytes_per_device)} per device, "
        f"{bytes_text(redundant)} of replicas in total"
    )
    if request.strategy is None:
        line += f", by {row.rule}"
    reason = _rule_reason(row, plan)
    return f"{line}, because {reason!r:.80}" if reason else line


def _replicated_fix(row: PlanRow, request: PlanRequest) -> str:
    mesh, strategy = request.mesh, request.strategy
    has_batch_axes = not {"data", "fsdp"}.isdisjoint(mesh_axis_roles(mesh))
    if strategy is not None and has_batch_axes and "fsdp" not in strategy.parts:
        name = strategy_name(strategy.parts, 3)
        return f"strategy {name}, which also shards them over the batch axes."
    if (sharding := best_sharding(row, mesh)) is None:
        return "pad a dimension so that it is divisible by a mesh axis, and shard it."
    dim, names = sharding
    axes = " and ".join(f"'{name}'" for name in names)
    n_shards = prod(mesh.shape[name] for name in names)
    shard_bytes = bytes_text(row.bytes_per_device / n_shards)
    return f"shard dimension {dim} of '{row.path}' over {axes}: {shard_bytes} per device."


def _nothing_sharded_finding(
    plan: Plan, n_devices: int, limits: Limits, reported_paths: Collection[str]
) -> list[Finding]:
    total = sum(row.bytes_per_device for row in plan.rows)
    unreported = sum(row.bytes_per_device for row in plan.rows if row.path not in reported_paths)
    if unreported < limits.replicated_bytes:
        return []
    return [
        make_finding(
            "plan.replicated",
            f"Nothing is sharded: each of {n_devices:,} devices stores all {bytes_text(total)}.",
            "rules that shard something, a strategy such as fsdp, or 'data-parallel' if intended.",
            details={"paths": [], "bytes_per_device": total},
        )
    ]


def find_replicated_states(plan: Plan, request: PlanRequest, limits: Limits) -> list[Finding]:
    """Return a finding if sharding the states over the unused batch axes saves much (ZeRO 1)."""
    axes = {name: request.mesh.shape[name] for name in batch_axes(request.mesh)}
    saved = sum(_zero_saving(state, axes) for state in plan.arrays_of("optimizer"))
    states = plan.bytes_of("optimizer")
    # Both limits: a tenth of a tiny plan is not worth a finding, nor 64 MiB of a huge one.
    if saved < max(limits.replicated_bytes, limits.replicated_states * plan.bytes_per_device):
        return []
    replicating = [
        name for name, size in axes.items() if size > 1 and _is_replicated_along(name, plan)
    ]
    along = " and ".join(f"'{name}'" for name in replicating) or "the batch axes"
    strategy = request.strategy
    name = "zero1 on top of the rules" if strategy is None else strategy_name(strategy.parts, 1)
    return [
        make_finding(
            "plan.optimizer_replicated",
            f"The optimizer states take {bytes_text(states)} per device and are replicated along "
            f"{along}: sharded over it they take {bytes_text(saved)} less.",
            f"ZeRO stage 1 by strategy {name}: each device updates its shard and all-gathers the "
            "parameters.",
            details={"bytes_per_device": states, "saved": saved},
        )
    ]


def _zero_saving(state: DeviceBytes, axes: dict[str, int]) -> int:
    """Return what is saved if one dimension takes all batch axes that the spec does not use."""
    n_shards = prod(size for name, size in axes.items() if name not in state.spec.mesh_axes)
    is_divisible = any(size and not size % n_shards for size in state.shard_shape)
    return state.bytes_per_device - state.bytes_per_device // n_shards if is_divisible else 0


def _is_replicated_along(name: str, plan: Plan) -> bool:
    """Return whether most of the states, by bytes, are replicated along a mesh axis."""
    states = list(plan.arrays_of("optimizer"))
    replicated = sum(state.bytes_per_device for state in states if name not in state.spec.mesh_axes)
    return 2 * replicated > sum(state.bytes_per_device for state in states)
