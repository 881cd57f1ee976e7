"""Findings about a plan: does it fit, what is replicated, what does not divide.

Limits: from where on something is worth a word.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shardlab.findings.finding import Finding
from shardlab.planner.findings.divisibility import indivisible, uneven
from shardlab.planner.findings.limits import parse_limits
from shardlab.planner.findings.memory_fit import fits
from shardlab.planner.findings.mesh_usage import embedding, idle, kv_heads
from shardlab.planner.findings.replication import optimizer_copies, replicated
from shardlab.planner.findings.unsharded import not_cut
from shardlab.planner.plan import Plan
from shardlab.planner.plan_request import PlanRequest
from shardlab.planner.remedies.remedy import Again


def plan_findings(
    plan: Plan,
    asked: PlanRequest,
    again: Again,
    limits: Any = None,
    of_rules: Iterable[Finding] = (),
) -> tuple[Finding, ...]:
    """Return what a person should know about a plan before they book the devices.

    `again` plans the same question with other choices, to find what would make it fit. What lint
    said of the rules is not said again.
    """
    limits = parse_limits(limits)
    heads = kv_heads(plan, asked)
    told = {path for found in of_rules for path in found.details.get("paths", ())}
    if heads:
        told |= {row.path for row in plan.rows if "kv_heads" in (row.axes or ())}
    left = not_cut(plan, limits, told)
    is_cut = any(held.spec.mesh_axes for row in plan.rows for held in row.held)
    told |= {path for found in left for path in found.details["paths"]}
    room = fits(plan, asked, again, limits)
    return (
        *room,
        *indivisible(plan, asked),
        *uneven(plan, asked, limits),
        *replicated(plan, asked, limits, told),
        *left,
        *(idle(plan, asked) if is_cut or asked.strategy else ()),
        *heads,
        *embedding(plan, asked),
        *(() if _names_zero(room) else optimizer_copies(plan, asked, limits)),
    )


def _names_zero(found: Iterable[Finding]) -> bool:
    """Tell whether a ZeRO stage is advised already."""
    changes = (change for each in found for change in each.details.get("changes", ()))
    return any("zero" in (change["options"].get("strategy") or "") for change in changes)
