"""A recording as plain text: one line, or a short summary."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shardlab._text.units import bytes_text, count_text, seconds_text
from shardlab.sharding.mesh import mesh_text

if TYPE_CHECKING:
    from shardlab.recording.recording import Recording


def recording_line(recording: Recording) -> str:
    """Return program, mesh and number of steps in one line."""
    n_collectives = sum(step.collective is not None for step in recording.steps)
    failure = f", ends in {recording.failure.kind}" if recording.failure else ""
    return (
        f"{recording.title} on {mesh_text(recording.mesh)}: "
        f"{count_text(len(recording.steps), 'step')}, "
        f"{count_text(n_collectives, 'collective')}{failure}"
    )


def recording_text(recording: Recording) -> str:
    """Return what was recorded: steps, collectives, bytes, time, and what went wrong."""
    totals = recording.totals
    lines = [recording_line(recording)]
    if recording.hardware:
        lines.append(
            f"  on {recording.hardware}: {seconds_text(totals.step_s)} per run "
            f"({seconds_text(totals.compute_s)} of compute and "
            f"{seconds_text(totals.communication_s)} of communication, overlapped where the data "
            f"flow allows); {bytes_text(totals.wire_bytes)} sent per device"
        )
    counts = Counter(
        (
            step.collective.op,
            step.collective.axes,
            step.line,
            step.code,
            " never completes" if step.waiting else "",
        )
        for step in recording.steps
        if step.collective is not None
    )
    for (op, axes, line, code, state), count in counts.items():
        times = f" x{count}" if count > 1 else ""
        lines.append(f"  {op} over {', '.join(axes)}{times}{state}, line {line}: {code}")
    wrong = [value for value in recording.values if value.disagrees]
    if wrong:
        names = ", ".join(dict.fromkeys(value.name or f"value {value.id}" for value in wrong[:4]))
        lines.append(f"  copies that should be equal differ: {names}")
    if recording.failure is not None:
        lines.append(f"  {recording.failure.kind}: {recording.failure.message}")
    lines += [
        f"  {finding.severity} [{finding.code}] {finding.message}" for finding in recording.findings
    ]
    lines += [f"  note: {note}" for note in recording.notes]
    if recording.truncated:
        lines.append(f"  {recording.truncated}")
    return "\n".join(lines)
