"""Is there a mesh axis that cuts nothing?"""

from __future__ import annotations

from math import prod

from shardlab.layouts.amount import memory_text
from shardlab.plans.asked import Asked
from shardlab.plans.codes import finding
from shardlab.plans.roles import ROLES, batch_axes, roles_of
from shardlab.plans.strategy import parse_strategy, strategy_name
from shardlab.records.finding import Finding
from shardlab.records.plan import Plan

_ELSEWHERE = ("sequence", "stage")  # roles of axes that cut the sequence and the layers


def idle(plan: Plan, asked: Asked) -> list[Finding]:
    """Return one finding for all mesh axes that cut nothing, with what could use them."""
    if not (names := idle_axes(plan, asked)):
        return []
    n = prod(asked.mesh.shape[name] for name in names)
    axes = " and ".join(f"'{name}'={asked.mesh.shape[name]}" for name in names)
    subject, verb = ("Mesh axis", "cuts") if len(names) == 1 else ("Mesh axes", "cut")
    held = memory_text(plan.bytes_per_device)
    return [
        finding(
            "plan.idle_axis",
            f"{subject} {axes} {verb} nothing, neither tensors nor the batch: {n:,} devices each "
            f"hold the same {held}, and compute the same.",
            f"{_use(names, asked)}, or a mesh without {'it' if len(names) == 1 else 'them'}.",
            details={"mesh_axes": list(names), "copies": n},
        )
    ]


def idle_axes(plan: Plan, asked: Asked) -> tuple[str, ...]:
    """Return the mesh axes that no spec names, and whose names do not say that they cut tokens."""
    roles = roles_of(asked.mesh)
    working = {*batch_axes(asked.mesh), *(n for role in _ELSEWHERE for n in roles.get(role, ()))}
    left = [name for name, size in asked.mesh.shape.items() if size > 1 and name not in working]
    if not left:
        return ()
    used = {name for row in plan.rows for held in row.held for name in held.spec.mesh_axes}
    return tuple(name for name in left if name not in used)


def _use(names: tuple[str, ...], asked: Asked) -> str:
    tensor = roles_of(asked.mesh).get("tensor", ())
    if asked.strategy is None:
        return f"rules that cut tensors over '{names[0]}'"
    strategy = parse_strategy(asked.strategy)
    if names[0] not in tensor:
        known = ", ".join(role for role in ROLES if role in ("data", "fsdp", "tensor"))
        return f"another name for '{names[0]}' that says what it cuts ({known})"
    if "tensor" in strategy.parts:  # it is meant to, and could not: plan.not_cut says why
        return f"a size of '{names[0]}' that divides the heads"
    return f"strategy {strategy_name([*strategy.parts, 'tensor'], strategy.zero)}"
