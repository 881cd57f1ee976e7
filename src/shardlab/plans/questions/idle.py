"""Is there a mesh axis that cuts nothing?"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from shardlab.layouts.amount import memory_text
from shardlab.layouts.mesh import Mesh
from shardlab.plans.asked import Asked
from shardlab.plans.codes import finding
from shardlab.plans.strategies.roles import ROLES, batch_axes, roles_of
from shardlab.plans.strategies.strategy import parse_strategy, strategy_name
from shardlab.records.finding import Finding
from shardlab.records.plan import Plan, PlanRow

_WHAT = {"tensor": "heads", "pipeline": "layers"}
_PARTS = {"tensor": "tensor", "stage": "pipeline"}  # role -> part of a strategy that cuts over it


def idle(plan: Plan, asked: Asked) -> list[Finding]:
    """Return one finding for all mesh axes that cut nothing, with what could use them."""
    if not (names := idle_axes(plan.rows, asked.mesh)):
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


def idle_axes(rows: Iterable[PlanRow], mesh: Mesh) -> tuple[str, ...]:
    """Return the mesh axes that no spec names, and whose names do not say that they cut tokens."""
    roles = roles_of(mesh)
    working = {*batch_axes(mesh), *roles.get("sequence", ())}
    left = [name for name, size in mesh.shape.items() if size > 1 and name not in working]
    if not left:
        return ()
    used = _used(rows)
    return tuple(name for name in left if name not in used)


def _used(rows: Iterable[PlanRow]) -> set[str]:
    return {name for row in rows for held in row.held for name in held.spec.mesh_axes}


def _use(names: tuple[str, ...], asked: Asked) -> str:
    roles, first = roles_of(asked.mesh), names[0]
    part = next((part for role, part in _PARTS.items() if first in roles.get(role, ())), None)
    if asked.strategy is None:
        stacked = "stacked layers" if part == "pipeline" else "tensors"
        return f"rules that cut {stacked} over '{first}'"
    strategy = parse_strategy(asked.strategy)
    if part is None:
        known = ", ".join(role for role in ROLES if role in ("data", "fsdp", "tensor"))
        return f"another name for '{first}' that says what it cuts ({known})"
    if part in strategy.parts:  # it is meant to, and could not: plan.not_cut says why
        return f"a size of '{first}' that divides the {_WHAT[part]}"
    return f"strategy {strategy_name([*strategy.parts, part], strategy.zero)}"
