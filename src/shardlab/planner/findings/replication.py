"""Is something large whole on every device while the rest is cut?

Are optimizer states held in copies that the mesh could do without?
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from math import prod

from shardlab._text.units import bytes_text
from shardlab.findings.finding import Finding
from shardlab.planner.findings.codes import finding
from shardlab.planner.findings.limits import Limits
from shardlab.planner.plan import DeviceBytes, Plan, PlanRow
from shardlab.planner.plan_request import PlanRequest
from shardlab.planner.strategies.axis_roles import batch_axes, mesh_axis_roles
from shardlab.planner.strategies.strategy import parse_strategy, strategy_name
from shardlab.sharding.mesh import Mesh

_SHOWN = 5


def replicated(
    plan: Plan, asked: PlanRequest, limits: Limits, told: Collection[str] = ()
) -> list[Finding]:
    """Return one finding for all lines that every device holds whole.

    Copies of everything are what a person asks for by the name of a strategy, so that these are not
    told; the same by rules that cut nothing may be an oversight. Paths in `stacked_meanings` have
    a finding of their own. What a rule with a reason leaves whole is only mentioned, with that
    reason: it may have been written for less.
    """
    n_devices = asked.mesh.n_devices
    if n_devices == 1 or not plan.rows:
        return []
    whole = [row for row in plan.rows if row.parameter.n_copies == n_devices]
    if len(whole) == len(plan.rows):
        return [] if asked.strategy is not None else _nothing_cut(plan, n_devices, limits, told)
    large = sorted(
        (
            row
            for row in whole
            if row.bytes_per_device >= limits.replicated_bytes and row.path not in told
        ),
        key=lambda row: -row.bytes_per_device,
    )
    meant = [row for row in large if _reason(row, asked)]
    open_ = [row for row in large if not _reason(row, asked)]
    return [
        *([_found(open_, asked)] if open_ else []),
        *([replace(_found(meant, asked), severity="info")] if meant else []),
    ]


def _reason(row: PlanRow, asked: PlanRequest) -> str:
    """Return the reason that stands with the rule which took a line."""
    taken = re.match(r"rule (\d+)", row.rule)
    number = int(taken[1]) - 1 if taken else -1
    rules = asked.rules.rules
    return rules[number].reason if 0 <= number < len(rules) else ""


def cut_of(row: PlanRow, mesh: Mesh) -> tuple[int, tuple[str, ...]] | None:
    """Return the array axis and the mesh axes that would cut a whole line into most parts.

    A vocabulary comes last: `plan.embedding_sharding` says why.
    """
    names = [name for name in mesh.axis_names if mesh.shape[name] > 1]
    choices = [tuple(names), *((name,) for name in sorted(names, key=lambda n: -mesh.shape[n]))]
    for axes in choices:
        n_parts = prod(mesh.shape[name] for name in axes)
        for axis in _by_size(row):
            if row.parameter.shape[axis] % n_parts == 0:
                return axis, axes
    return None


def _by_size(row: PlanRow) -> list[int]:
    shape = row.parameter.shape
    meanings = row.axes or (None,) * len(shape)
    axes = (axis for axis, size in enumerate(shape) if size)
    return sorted(axes, key=lambda axis: (meanings[axis] == "vocab", -shape[axis]))


def _found(rows: list[PlanRow], asked: PlanRequest) -> Finding:
    n, each = asked.mesh.n_devices, sum(row.bytes_per_device for row in rows)
    lines = [
        f"{row.path} ×{row.n_tensors}: {bytes_text(row.bytes_per_device)} on each device, "
        f"{bytes_text(row.bytes_per_device * (n - 1))} of copies in all"
        + (f", by {row.rule}" if asked.strategy is None else "")
        + (f", since {reason!r:.80}" if (reason := _reason(row, asked)) else "")
        for row in rows[:_SHOWN]
    ]
    if len(rows) > _SHOWN:
        lines.append(f"and {len(rows) - _SHOWN} lines more")
    kinds = "A line of tensors is" if len(rows) == 1 else f"{len(rows)} lines of tensors are"
    return finding(
        "plan.replicated",
        f"{kinds} whole on each of {n:,} devices, {bytes_text(each)} on every one of them, while "
        f"others are cut.",
        _fix(rows[0], asked),
        shows=tuple(lines),
        details={"paths": [row.path for row in rows], "bytes_per_device": each},
    )


def _fix(row: PlanRow, asked: PlanRequest) -> str:
    mesh = asked.mesh
    if asked.strategy is not None and {"data", "fsdp"} & set(mesh_axis_roles(mesh)):
        strategy = parse_strategy(asked.strategy)
        if "fsdp" not in strategy.parts:
            other = strategy_name(strategy.parts, 3)
            return f"strategy {other}, which cuts them over the axes of the batch too."
    if (cut := cut_of(row, mesh)) is None:
        return "pad an array axis so that a mesh axis divides it, and cut it there."
    axis, names = cut
    over = " and ".join(f"'{name}'" for name in names)
    n_parts = prod(mesh.shape[name] for name in names)
    left = bytes_text(row.bytes_per_device / n_parts)
    return f"cut array axis {axis} of '{row.path}' over {over}: {left} on each device."


def _nothing_cut(
    plan: Plan, n_devices: int, limits: Limits, told: Collection[str]
) -> list[Finding]:
    held = sum(row.bytes_per_device for row in plan.rows)
    untold = sum(row.bytes_per_device for row in plan.rows if row.path not in told)
    if untold < limits.replicated_bytes:
        return []
    return [
        finding(
            "plan.replicated",
            f"Nothing is cut: each of {n_devices:,} devices holds all {bytes_text(held)}.",
            "rules that cut something, a strategy such as fsdp, or 'data-parallel' if it is meant.",
            details={"paths": [], "bytes_per_device": held},
        )
    ]


def optimizer_copies(plan: Plan, asked: PlanRequest, limits: Limits) -> list[Finding]:
    """Return a finding where the states, cut over the batch axes left, would save much (ZeRO 1)."""
    axes = {name: asked.mesh.shape[name] for name in batch_axes(asked.mesh)}
    saved = sum(
        _saved(held, axes) for row in plan.rows for held in row.held if held.kind == "optimizer"
    )
    states = plan.bytes_of("optimizer")
    if saved < max(limits.replicated_bytes, limits.copied_share * plan.bytes_per_device):
        return []
    left = [name for name, size in axes.items() if size > 1 and _is_left(name, plan)]
    over = " and ".join(f"'{name}'" for name in left) or "the batch axes"
    parts = parse_strategy(asked.strategy).parts if asked.strategy is not None else ()
    name = (
        f"strategy {strategy_name(parts, 1)}"
        if asked.strategy
        else "strategy zero1 beside the rules"
    )
    return [
        finding(
            "plan.optimizer_replicated",
            f"The optimizer's states take {bytes_text(states)} on each device and are the same "
            f"along {over}: cut over it they would take {bytes_text(saved)} less.",
            f"ZeRO stage 1 by {name}: each device updates its part and gathers the parameters.",
            details={"bytes_per_device": states, "saved": saved},
        )
    ]


def _saved(held: DeviceBytes, axes: dict[str, int]) -> int:
    """Return what is saved where some array axis takes the batch axes that the spec leaves out."""
    parts = 1
    for name, size in axes.items():
        if name not in held.spec.mesh_axes:
            parts *= size
    divides = any(size and not size % parts for size in held.shard_shape)
    return held.bytes_per_device - held.bytes_per_device // parts if divides else 0


def _is_left(name: str, plan: Plan) -> bool:
    """Tell whether most of the states, by bytes, are the same along a mesh axis."""
    states = [held for row in plan.rows for held in row.held if held.kind == "optimizer"]
    alike = sum(held.bytes_per_device for held in states if name not in held.spec.mesh_axes)
    return 2 * alike > sum(held.bytes_per_device for held in states)
