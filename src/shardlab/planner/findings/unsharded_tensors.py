"""Could a strategy apply every sharding? Tensors with an indivisible size stay unsharded."""

from __future__ import annotations

from collections.abc import Collection
from math import gcd

from shardlab._text.units import bytes_text
from shardlab.findings.finding import Finding
from shardlab.planner.findings.finding_limits import Limits
from shardlab.planner.findings.plan_finding_codes import make_finding
from shardlab.planner.plan import DeviceBytes, Plan, PlanRow, SkippedSharding
from shardlab.sharding.partition import nearest_divisible_sizes

_MAX_ROWS = 4  # listed in one finding
_SkippedRow = tuple[SkippedSharding, PlanRow]


def find_unsharded(
    plan: Plan, limits: Limits, reported_paths: Collection[str] = ()
) -> list[Finding]:
    """Return a finding for each part of a strategy that skipped something, with its cost.

    Paths in `reported_paths` have a finding of their own.
    """
    groups: dict[tuple[str, tuple[str, ...]], list[_SkippedRow]] = {}
    for row in plan.rows:
        for skipped in _independent_skips(row) if row.path not in reported_paths else ():
            if excess_bytes(skipped, row) >= limits.replicated_bytes:
                groups.setdefault((skipped.part, skipped.mesh_axes), []).append((skipped, row))
    with_excess = [
        (sum(excess_bytes(skipped, row) for skipped, row in group), group)
        for group in groups.values()
    ]
    with_excess.sort(key=lambda pair: -pair[0])
    return [_unsharded_finding(group, excess) for excess, group in with_excess]


def _independent_skips(row: PlanRow) -> list[SkippedSharding]:
    """Return the skipped shardings without those of states that repeat their parameter's.

    With ZeRO stage 3 the states fail over the same mesh axes as the parameter.
    """
    by_fsdp = {frozenset(skipped.mesh_axes) for skipped in row.skipped if skipped.part == "fsdp"}
    return [
        skipped
        for skipped in row.skipped
        if skipped.part != "zero" or frozenset(skipped.mesh_axes) not in by_fsdp
    ]


def excess_bytes(skipped: SkippedSharding, row: PlanRow) -> int:
    """Return what a device stores of a row beyond what the skipped sharding would have left."""
    # A skipped ZeRO sharding concerns only the states, any other all arrays of the tensor.
    stored = sum(array.bytes_per_device for array in row.arrays if _concerns(skipped, array))
    return stored - stored // skipped.n_shards


def _concerns(skipped: SkippedSharding, array: DeviceBytes) -> bool:
    return skipped.part != "zero" or array.kind == "optimizer"


def _unsharded_finding(group: list[_SkippedRow], excess: int) -> Finding:
    first, _ = group[0]
    group = sorted(group, key=lambda pair: -pair[1].bytes_per_device)
    reasons = {(skipped.size, skipped.meaning) for skipped, _ in group}
    lines = [
        f"{row.path} ×{row.n_tensors}, {bytes_text(row.bytes_per_device)}"
        + (f": {skipped}" if len(reasons) > 1 else "")
        for skipped, row in group[:_MAX_ROWS]
    ]
    if len(group) > _MAX_ROWS:
        lines.append(f"and {len(group) - _MAX_ROWS} more")
    reason = _indivisible_text(first) if len(reasons) == 1 else ""
    axes = " × ".join(f"'{name}'" for name in first.mesh_axes)
    subject = "one row of tensors" if len(group) == 1 else f"{len(group)} rows of tensors"
    return make_finding(
        "plan.unsharded",
        f"Strategy part {first.part} could not shard {subject} over {axes} of size "
        f"{first.n_shards:,}{reason}: {bytes_text(excess)} more per device.",
        _unsharded_fix([skipped for skipped, _ in group], axes),
        shows=tuple(lines),
        details={"paths": [row.path for _, row in group], "excess": excess},
    )


def _indivisible_text(skipped: SkippedSharding) -> str:
    noun = skipped.meaning.replace("_", " ")
    if skipped.is_heads or noun == "experts":
        return f", because {skipped.size:,} {noun} are not divisible by it"
    return f", because {skipped.size:,} is not divisible by it"


def _unsharded_fix(skipped: list[SkippedSharding], axes: str) -> str:
    """Suggest a size of the mesh axes that divides these sizes."""
    # A divisor of the present size also divides everything that the present size divides.
    n_shards = gcd(skipped[0].n_shards, *(sharding.size for sharding in skipped))
    mesh = f"{axes} of size {n_shards:,}, and the other devices on another axis"
    mesh = mesh if n_shards > 1 else f"another size of {axes}"
    largest = skipped[0]
    if largest.meaning not in ("vocab", ""):  # another size would be another model
        return f"{mesh}."
    below, above = nearest_divisible_sizes(largest.size, largest.n_shards)
    sizes = f"{below:,} or {above:,}" if below else f"{above:,}"
    return f"{mesh}; or {sizes} instead of {largest.size:,}."
