"""Steps -> a timeline: compute in program order, collectives as early as their operands allow.

A collective starts when its operand is computed and the links of its mesh axes are free; compute
continues until it needs the result, as XLA's latency-hiding scheduler arranges it. A collective
that compute waits for is exposed. One device is shown; all execute the same steps. A collective in
which devices wait forever has a bar of no length: it starts, and never completes.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardlab.recording.step_records import (
    RecordedValue,
    RecordingTotals,
    Step,
    Timeline,
    TimelineBar,
    TimelineLane,
)
from shardlab.sharding.mesh import MeshSizes

COMPUTE_LANE = "compute"


def schedule_steps(steps: Sequence[Step], mesh: MeshSizes) -> Timeline:
    """Return the lanes of compute and of each mesh axis."""
    lanes: dict[str, list[TimelineBar]] = {COMPUTE_LANE: [], **{name: [] for name, _ in mesh}}
    links_free = {name: 0.0 for name, _ in mesh}
    compute_free = 0.0
    ready: dict[int, float] = {}  # when each value is computed
    sent_by: dict[int, list[tuple[str, int]]] = {}  # bars of the collective that makes a value
    for number, step in enumerate(steps):
        operands_ready = max((ready.get(value, 0.0) for value in step.reads), default=0.0)
        seconds = step.seconds or 0.0
        if step.collective is not None:
            axes = [name for name in step.collective.axes if name in links_free]
            # Issued in program order: a device reaches it when it has computed what comes before.
            start = max(operands_ready, *(links_free[name] for name in axes), 0.0)
            bars = []
            for name in axes:
                links_free[name] = start + seconds
                bars.append((name, len(lanes[name])))
                lanes[name].append(
                    TimelineBar(step=number, start_s=start, duration_s=seconds, exposed=False)
                )
            for value in step.writes:
                ready[value] = start + seconds
                sent_by[value] = bars
            continue
        start = max(compute_free, operands_ready)
        if operands_ready > compute_free:
            _mark_exposed(lanes, sent_by, step.reads, ready, compute_free)
        compute_free = start + seconds
        if seconds > 0:
            lanes[COMPUTE_LANE].append(
                TimelineBar(step=number, start_s=start, duration_s=seconds, exposed=False)
            )
        for value in step.writes:
            ready[value] = start + seconds
    # Nothing is computed after the last collectives that hides them.
    total = max([compute_free, *links_free.values()])
    for name, _ in mesh:
        lanes[name] = [
            _exposed(bar) if bar.start_s + bar.duration_s > compute_free else bar
            for bar in lanes[name]
        ]
    return Timeline(
        total_s=total,
        lanes=tuple(TimelineLane(name=name, bars=tuple(bars)) for name, bars in lanes.items()),
    )


def _mark_exposed(
    lanes: dict[str, list[TimelineBar]],
    sent_by: dict[int, list[tuple[str, int]]],
    reads: Sequence[int],
    ready: dict[int, float],
    compute_free: float,
) -> None:
    for value in reads:
        if ready.get(value, 0.0) > compute_free:
            for name, index in sent_by.get(value, ()):
                lanes[name][index] = _exposed(lanes[name][index])


def _exposed(bar: TimelineBar) -> TimelineBar:
    return TimelineBar(
        step=bar.step, start_s=bar.start_s, duration_s=bar.duration_s, exposed=bar.duration_s > 0
    )


def sum_totals(
    steps: Sequence[Step], values: Sequence[RecordedValue], sizes: Sequence[int], timeline: Timeline
) -> RecordingTotals:
    """Return the totals per device; `sizes` are the bytes of each value on one device."""
    collectives = [
        step.collective for step in steps if step.collective is not None and step.waiting is None
    ]
    return RecordingTotals(
        flops=sum(step.flops for step in steps),
        wire_bytes=sum(collective.wire_bytes for collective in collectives),
        compute_s=sum(step.seconds or 0.0 for step in steps if step.collective is None),
        communication_s=sum(collective.seconds or 0.0 for collective in collectives),
        step_s=timeline.total_s,
        peak_bytes=_peak_bytes(steps, sizes),
    )


def _peak_bytes(steps: Sequence[Step], sizes: Sequence[int]) -> int:
    """Return the most bytes that are in use at once, if each value lives until its last reader.

    A compiler fuses operations and needs less; values that are never read count at their step.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, step in enumerate(steps):
        for value in step.reads:
            first.setdefault(value, 0)  # an input of the program
            last[value] = number
        for value in step.writes:
            first.setdefault(value, number)
            last[value] = max(last.get(value, number), number)
    changes = [0] * (len(steps) + 1)
    for value, start in first.items():
        changes[start] += sizes[value]
        changes[last[value] + 1] -= sizes[value]
    peak = in_use = 0
    for change in changes:
        in_use += change
        peak = max(peak, in_use)
    return peak
