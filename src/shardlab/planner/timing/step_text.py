"""The time of a step as a table: what the devices do, what they wait for, and the range."""

from __future__ import annotations

from collections.abc import Iterator

from shardlab._text.units import seconds_text
from shardlab.hardware.operation_time import OperationTime
from shardlab.hardware.step_time import StepTime
from shardlab.render.sheet import Column, Row, Section, Table

_MIN_SHARE = 0.001  # of a step: shorter parts are in the JSON only
_GRADIENTS = (", input gradient", ", weight gradient")


def step_section(step: StepTime, title: str) -> Section:
    """Return the parts of a step, longest first, and how they add up."""
    columns = (
        Column(head=""),
        Column(head="time", is_number=True),
        Column(head="share", is_number=True),
        Column(head="bound by", drop=1),
    )
    rows = tuple(
        Row(cells=(name, seconds_text(seconds), f"{100 * seconds / step.expected:.0f} %", bound))
        for name, seconds, bound in step_parts(step)
        if seconds >= _MIN_SHARE * step.expected
    )
    total = f"{step.unit}: {seconds_text(step.expected)}"
    runs = "published runs are" if step.unit == "step" else "training runs on this chip are"
    legend = f"90 % of {runs} within the range; MFU is that of the bf16 peak"
    notes = (total, legend, f"software: {step.framework}") if step.framework else (total, legend)
    return Section(f"{title}: {step_summary(step)}", Table(columns, rows), notes)


def step_summary(step: StepTime) -> str:
    """Return the time, its range and the MFU: `1.2 s (1-1.5 s), MFU 45 %`."""
    mfu = f"{100 * step.utilization(step.expected):.0f} %"
    lower, upper = seconds_text(step.lower), seconds_text(step.upper)
    return f"{seconds_text(step.expected)} ({lower} to {upper}), MFU {mfu}"


def step_parts(step: StepTime) -> Iterator[tuple[str, float, str]]:
    """Yield name, seconds and bound of each part; they add up to the step."""
    totals: dict[str, list[OperationTime]] = {}
    for operation in step.operations:
        totals.setdefault(_part_name(operation.name), []).append(operation)
    parts = [
        (
            name,
            sum(operation.total_seconds for operation in operations),
            max(operations, key=lambda operation: operation.total_seconds).bound,
        )
        for name, operations in totals.items()
    ]
    yield from sorted(parts, key=lambda part: -part[1])
    hidden = min(step.busy_seconds, step.overlapped_seconds)
    if step.overlapped_seconds:
        yield "slowed by overlapped communication", step.slowed_seconds, "network"
        yield "communication beyond compute", step.overlapped_seconds - hidden, "network"
    for axes, seconds in step.by_axis(is_overlapped=False).items():
        yield f"exposed communication over {axes.replace(',', '+')}", seconds, "network"
    yield "pipeline bubble", step.bubble_seconds, "waiting"
    yield "step overhead", step.overhead_seconds, "waiting"


def _part_name(name: str) -> str:
    """Return a product without its gradients: `q_proj, input gradient` is `q_proj`."""
    for suffix in _GRADIENTS:
        name = name.removesuffix(suffix)
    return name
