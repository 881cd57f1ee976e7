"""Does the plan fit in memory, and if not, what is the cheapest change that makes it fit?"""

from __future__ import annotations

from collections.abc import Sequence

from shardlab._text.units import bytes_text
from shardlab.findings.finding import Finding
from shardlab.planner.findings.divisibility import find_indivisible
from shardlab.planner.findings.finding_limits import Limits
from shardlab.planner.findings.plan_finding_codes import make_finding
from shardlab.planner.plan import KINDS, MemoryBudget, Plan
from shardlab.planner.plan_request import PlanRequest
from shardlab.planner.remedies.remedy import Remedy

_MAX_LARGEST = 4  # of the largest tensors, listed in one finding
_MAX_REMEDIES = 3  # besides the cheapest
_KIND_NAMES = {"kv_cache": "KV cache", "optimizer": "optimizer states"}


def find_memory_overflow(
    plan: Plan, request: PlanRequest, remedies: Sequence[Remedy]
) -> list[Finding]:
    """Return a finding if the plan does not fit; `remedies` are the changes that make it fit."""
    if (budget := plan.budget) is None or plan.fits:
        return []
    needed, usable = plan.bytes_per_device, budget.usable_bytes
    headroom = f" after {budget.headroom:.0%} headroom" if budget.headroom else ""
    return [
        make_finding(
            "plan.does_not_fit",
            f"Each device needs {bytes_text(needed)}, and {budget.hardware} has "
            f"{bytes_text(usable)} of {bytes_text(budget.hbm_bytes)}{headroom}: "
            f"{bytes_text(needed - usable)} too much.",
            _overflow_fix(plan, request, remedies),
            # A separate cause: lowering the headroom is a choice, lacking memory is not.
            cause="headroom" if needed <= budget.hbm_bytes else "",
            shows=(
                f"by kind: {_kinds_text(plan)}",
                f"largest: {_largest_text(plan)}",
                *_more_remedies(remedies),
            ),
            details={
                "needed": needed,
                "usable": usable,
                "changes": [remedy.to_json(request) for remedy in remedies],
            },
        )
    ]


def _overflow_fix(plan: Plan, request: PlanRequest, remedies: Sequence[Remedy]) -> str:
    if remedies:
        cheapest = remedies[0]
        return f"{cheapest.text}: {bytes_text(cheapest.plan.bytes_per_device)} per device."
    if find_indivisible(plan, request):
        return "first fix the indivisible sizes (plan.indivisible); then changes can be tried."
    return "a smaller model, or a chip with more memory: no change that was tried is enough."


def _more_remedies(remedies: Sequence[Remedy]) -> tuple[str, ...]:
    texts = [
        f"{remedy.text} ({bytes_text(remedy.plan.bytes_per_device)})"
        for remedy in remedies[1 : 1 + _MAX_REMEDIES]
    ]
    return (f"would also fit: {'; '.join(texts)}",) if texts else ()


def _kinds_text(plan: Plan) -> str:
    sizes = {kind: plan.bytes_of(kind) for kind in KINDS}
    largest_first = sorted((kind for kind in KINDS if sizes[kind]), key=lambda kind: -sizes[kind])
    return ", ".join(
        f"{_KIND_NAMES.get(kind, kind)} {bytes_text(sizes[kind])}" for kind in largest_first
    )


def _largest_text(plan: Plan) -> str:
    sizes = [(row.bytes_per_device, f"{row.path} ×{row.n_tensors}") for row in plan.rows]
    sizes += [(item.bytes_per_device, item.name) for item in plan.items]
    sizes.sort(key=lambda pair: -pair[0])
    return ", ".join(f"{name} {bytes_text(n_bytes)}" for n_bytes, name in sizes[:_MAX_LARGEST])


def find_low_headroom(plan: Plan, limits: Limits) -> list[Finding]:
    """Return a finding if the plan fits with little to spare."""
    if (budget := plan.budget) is None or not plan.fits:
        return []
    free = budget.usable_bytes - plan.bytes_per_device
    if free < limits.low_headroom * budget.hbm_bytes:
        return [_low_headroom_finding(plan, budget, free)]
    return []


def _low_headroom_finding(plan: Plan, budget: MemoryBudget, free: int) -> Finding:
    is_training = plan.choices.get("optimizer", "none") != "none"
    note = ""
    if is_training and not plan.bytes_of("activations"):
        note = " Activations are not counted: no workload was given."
    return make_finding(
        "plan.low_headroom",
        f"It fits with {bytes_text(free)} free beyond the headroom: each device needs "
        f"{bytes_text(plan.bytes_per_device)} of {bytes_text(budget.usable_bytes)} usable "
        f"({bytes_text(budget.hbm_bytes)} memory).{note}",
        "compile the step and read XLA's memory_analysis() before relying on it.",
        details={"free": free},
    )
