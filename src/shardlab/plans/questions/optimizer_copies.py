"""Are optimizer states held in copies that the mesh could do without?"""

from __future__ import annotations

from shardlab.layouts.amount import memory_text
from shardlab.plans.asked import Asked
from shardlab.plans.codes import finding
from shardlab.plans.limits import Limits
from shardlab.plans.strategies.roles import batch_axes
from shardlab.plans.strategies.strategy import parse_strategy, strategy_name
from shardlab.records.finding import Finding
from shardlab.records.plan import Held, Plan


def optimizer_copies(plan: Plan, asked: Asked, limits: Limits) -> list[Finding]:
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
            f"The optimizer's states take {memory_text(states)} on each device and are the same "
            f"along {over}: cut over it they would take {memory_text(saved)} less.",
            f"ZeRO stage 1 by {name}: each device updates its part and gathers the parameters.",
            details={"bytes_per_device": states, "saved": saved},
        )
    ]


def _saved(held: Held, axes: dict[str, int]) -> int:
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
