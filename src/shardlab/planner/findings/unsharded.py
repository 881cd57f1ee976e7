"""Could a strategy cut all that it meant to? What does not divide it leaves whole."""

from __future__ import annotations

from collections.abc import Collection
from math import gcd

from shardlab._text.units import bytes_text
from shardlab.findings.finding import Finding
from shardlab.planner.findings.codes import finding
from shardlab.planner.findings.limits import Limits
from shardlab.planner.plan import DeviceBytes, Plan, PlanRow, SkippedSharding
from shardlab.sharding.partition import nearest_divisible_sizes

_SHOWN = 4


def not_cut(plan: Plan, limits: Limits, told: Collection[str] = ()) -> list[Finding]:
    """Return a finding for each part of a strategy that stumbled, with what that costs.

    Paths in `stacked_meanings` have a finding of their own.
    """
    groups: dict[tuple[str, tuple[str, ...]], list[tuple[SkippedSharding, PlanRow]]] = {}
    for row in plan.rows:
        for each in _apart(row) if row.path not in told else ():
            if excess_of(each, row) >= limits.replicated_bytes:
                groups.setdefault((each.part, each.mesh_axes), []).append((each, row))
    found = [(sum(excess_of(each, row) for each, row in group), group) for group in groups.values()]
    found.sort(key=lambda pair: -pair[0])
    return [_found(group, excess) for excess, group in found]


def _apart(row: PlanRow) -> list[SkippedSharding]:
    """Return what could not be cut; of stage 3 the states fail where their parameter does."""
    failed = {frozenset(each.mesh_axes) for each in row.declined if each.part == "fsdp"}
    return [
        each
        for each in row.declined
        if each.part != "zero" or frozenset(each.mesh_axes) not in failed
    ]


def excess_of(declined: SkippedSharding, row: PlanRow) -> int:
    """Return what a device holds of a line beyond what the cut would have left it."""
    held = sum(each.bytes_per_device for each in row.held if _is_meant(declined, each))
    return held - held // declined.n_parts


def _is_meant(declined: SkippedSharding, held: DeviceBytes) -> bool:
    return declined.part != "zero" or held.kind == "optimizer"


def _found(group: list[tuple[SkippedSharding, PlanRow]], excess: int) -> Finding:
    first, _ = group[0]
    group = sorted(group, key=lambda pair: -pair[1].bytes_per_device)
    reasons = {(each.size, each.meaning) for each, _ in group}
    lines = [
        f"{row.path} ×{row.n_tensors}, {bytes_text(row.bytes_per_device)}"
        + (f": {each}" if len(reasons) > 1 else "")
        for each, row in group[:_SHOWN]
    ]
    if len(group) > _SHOWN:
        lines.append(f"and {len(group) - _SHOWN} more")
    why = _reason(first) if len(reasons) == 1 else ""
    over = " × ".join(f"'{name}'" for name in first.mesh_axes)
    what = "a line of tensors" if len(group) == 1 else f"{len(group)} lines of tensors"
    return finding(
        "plan.unsharded",
        f"Strategy part {first.part} could not cut {what} over {over} of size {first.n_parts:,}"
        f"{why}: {bytes_text(excess)} more on each device.",
        _fix([each for each, _ in group], over),
        shows=tuple(lines),
        details={"paths": [row.path for _, row in group], "excess": excess},
    )


def _reason(declined: SkippedSharding) -> str:
    noun = declined.meaning.replace("_", " ")
    noun = f" {noun}" if declined.is_heads or noun == "experts" else ""
    return f", which does not divide {declined.size:,}{noun}"


def _fix(declined: list[SkippedSharding], over: str) -> str:
    """Name a size of the mesh axes that divides these, and all that the present size divides."""
    parts = gcd(declined[0].n_parts, *(each.size for each in declined))
    mesh = f"{over} of size {parts:,}, and the other devices on another axis"
    mesh = mesh if parts > 1 else f"another size of {over}"
    largest = declined[0]
    if largest.meaning not in ("vocab", ""):  # other sizes would be another model
        return f"{mesh}."
    below, above = nearest_divisible_sizes(largest.size, largest.n_parts)
    sizes = f"{below:,} or {above:,}" if below else f"{above:,}"
    return f"{mesh}; or {sizes} in place of {largest.size:,}."
