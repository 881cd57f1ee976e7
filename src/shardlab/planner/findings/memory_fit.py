"""Does it fit, and if not, what is the cheapest change that makes it fit?"""

from __future__ import annotations

from shardlab._text.units import bytes_text
from shardlab.findings.finding import Finding
from shardlab.planner.advice.activation_margin import margin_of
from shardlab.planner.findings.codes import finding
from shardlab.planner.findings.divisibility import indivisible
from shardlab.planner.findings.limits import Limits
from shardlab.planner.plan import KINDS, MemoryBudget, Plan
from shardlab.planner.plan_request import PlanRequest
from shardlab.planner.remedies.remedy import Again, Change, fitting_changes

_SHOWN = 4
_WORDS = {"kv_cache": "KV cache", "optimizer": "optimizer states"}


def fits(plan: Plan, asked: PlanRequest, again: Again, limits: Limits) -> list[Finding]:
    """Return a finding where it does not fit, or only just; nothing without hardware."""
    if (room := plan.room) is None:
        return []
    if not plan.fits:
        changes = fitting_changes(plan, asked, again)
        is_sound = not indivisible(plan, asked)
        return [_does_not_fit(plan, room, changes, _fix(changes, is_sound), asked)]
    free = room.usable_bytes - plan.bytes_per_device
    if free < limits.tight_share * room.hbm_bytes or _more_activations(plan) > free:
        return [_tight(plan, room, free)]
    return []


def _more_activations(plan: Plan) -> int:
    """Return what activations may take beyond their estimate, as measured; nothing in inference."""
    remat = str(plan.choices.get("remat", ""))
    return int(plan.bytes_of("activations") * (margin_of(remat) - 1)) if remat else 0


def _does_not_fit(
    plan: Plan, room: MemoryBudget, changes: list[Change], fix: str, asked: PlanRequest
) -> Finding:
    needed, usable = plan.bytes_per_device, room.usable_bytes
    headroom = f" after a headroom of {room.headroom:.0%}" if room.headroom else ""
    return finding(
        "plan.does_not_fit",
        f"Each device needs {bytes_text(needed)}, and {room.hardware} has {bytes_text(usable)} "
        f"of {bytes_text(room.hbm_bytes)}{headroom}: {bytes_text(needed - usable)} too much.",
        fix,
        cause="headroom" if needed <= room.hbm_bytes else "",
        shows=(f"by kind: {_kinds(plan)}", f"largest: {_largest(plan)}", *_others(changes)),
        details={
            "needed": needed,
            "usable": usable,
            "changes": [change.to_json(asked) for change in changes],
        },
    )


def _fix(changes: list[Change], is_sound: bool) -> str:
    if not changes and not is_sound:
        return "first mend what does not divide (plan.indivisible); then changes can be tried."
    if not changes:
        return "a smaller model, or a chip with more memory: none of the changes tried is enough."
    return f"{changes[0].words}: {bytes_text(changes[0].plan.bytes_per_device)} on each device."


def _others(changes: list[Change]) -> tuple[str, ...]:
    told = [
        f"{change.words} ({bytes_text(change.plan.bytes_per_device)})" for change in changes[1:4]
    ]
    return (f"would fit too: {'; '.join(told)}",) if told else ()


def _kinds(plan: Plan) -> str:
    held = {kind: plan.bytes_of(kind) for kind in KINDS}
    ordered = sorted((kind for kind in KINDS if held[kind]), key=lambda kind: -held[kind])
    return ", ".join(f"{_WORDS.get(kind, kind)} {bytes_text(held[kind])}" for kind in ordered)


def _largest(plan: Plan) -> str:
    things = [(row.bytes_per_device, f"{row.path} ×{row.n_tensors}") for row in plan.rows]
    things += [(item.bytes_per_device, item.name) for item in plan.items]
    things.sort(key=lambda thing: -thing[0])
    return ", ".join(f"{name} {bytes_text(n)}" for n, name in things[:_SHOWN])


def _tight(plan: Plan, room: MemoryBudget, free: int) -> Finding:
    missing = plan.choices.get("optimizer", "none") != "none" and not plan.bytes_of("activations")
    beside = " Activations are not counted: the workload is not given." if missing else ""
    if (more := _more_activations(plan)) > free:
        remat = str(plan.choices["remat"])
        beside = (
            f" XLA was measured to take up to {margin_of(remat):g} times what is "
            f"estimated for activations with remat {remat}: "
            f"{bytes_text(plan.bytes_per_device + more)} in all."
        )
    return finding(
        "plan.low_headroom",
        f"It fits with {bytes_text(free)} to spare beyond the headroom: each device needs "
        f"{bytes_text(plan.bytes_per_device)}, and {bytes_text(room.usable_bytes)} of "
        f"{bytes_text(room.hbm_bytes)} are to be used.{beside}",
        "look at what XLA itself needs (memory_analysis) before counting on it.",
        details={"free": free},
    )
