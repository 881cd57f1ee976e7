"""Is there a mesh axis that cuts nothing?"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from shardlab.layouts.amount import memory_text
from shardlab.layouts.mesh import Mesh
from shardlab.plans.asked import Asked
from shardlab.plans.codes import finding
from shardlab.plans.roles import ROLES, batch_axes, roles_of
from shardlab.plans.strategy import parse_strategy, strategy_name
from shardlab.records.finding import Finding
from shardlab.records.plan import Plan, PlanRow

_ELSEWHERE = ("sequence", "stage")  # roles of axes that cut the sequence and the layers


def idle(plan: Plan, asked: Asked) -> list[Finding]:
    """Return a finding for all mesh axes that cut nothing, and one for stages without tensors."""
    if not (names := idle_axes(plan.rows, asked.mesh)):
        return _stages(plan, asked)
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
        ),
        *_stages(plan, asked),
    ]


def _stages(plan: Plan, asked: Asked) -> list[Finding]:
    """Stages divide the layers of activations and caches; no strategy gives them their tensors."""
    used = _used(plan.rows)
    stages = roles_of(asked.mesh).get("stage", ())
    names = [name for name in stages if asked.mesh.shape[name] > 1 and name not in used]
    if not names or not plan.rows:
        return []
    n = prod(asked.mesh.shape[name] for name in names)
    axes = " and ".join(f"'{name}'={asked.mesh.shape[name]}" for name in names)
    beside = ", though activations and caches with its own layers alone" if plan.items else ""
    held = memory_text(sum(row.bytes_per_device for row in plan.rows))
    return [
        finding(
            "plan.idle_axis",
            f"No spec cuts tensors over {axes}: each stage is counted with the tensors of all "
            f"layers, {held} on a device{beside}.",
            "layers stacked in one array (--stack layers), and a logical rule that cuts 'layers' "
            f"over '{names[0]}'.",
            details={"mesh_axes": names, "copies": n},
        )
    ]


def idle_axes(rows: Iterable[PlanRow], mesh: Mesh) -> tuple[str, ...]:
    """Return the mesh axes that no spec names, and whose names do not say that they cut tokens."""
    roles = roles_of(mesh)
    working = {*batch_axes(mesh), *(n for role in _ELSEWHERE for n in roles.get(role, ()))}
    left = [name for name, size in mesh.shape.items() if size > 1 and name not in working]
    if not left:
        return ()
    used = _used(rows)
    return tuple(name for name in left if name not in used)


def _used(rows: Iterable[PlanRow]) -> set[str]:
    return {name for row in rows for held in row.held for name in held.spec.mesh_axes}


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
