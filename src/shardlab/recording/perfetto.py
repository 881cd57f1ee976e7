"""The timeline of a recording as Chrome trace events, which ui.perfetto.dev opens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardlab.sharding.mesh import mesh_text

if TYPE_CHECKING:
    from shardlab.recording.recording import Recording

_PROCESS = 1


def perfetto_trace(recording: Recording) -> dict[str, Any]:
    """Return one thread per lane: compute, and the links of each mesh axis; times in µs."""
    events: list[dict[str, Any]] = [_metadata("process_name", 0, _process_name(recording))]
    for number, lane in enumerate(recording.timeline.lanes):
        title = lane.name if lane.name == "compute" else f"mesh axis {lane.name}"
        events.append(_metadata("thread_name", number, title))
        events.append(
            {**_metadata("thread_sort_index", number, ""), "args": {"sort_index": number}}
        )
        for bar in lane.bars:
            step = recording.steps[bar.step]
            collective = step.collective
            arguments: dict[str, Any] = {
                "step": bar.step,
                "line": step.line,
                "code": step.code,
                "phase": step.phase,
                "flops": step.flops,
            }
            if collective is not None:
                arguments |= {
                    "axes": ", ".join(collective.axes),
                    "bytes sent": 0 if step.waiting else collective.wire_bytes,
                    "blocked": step.waiting is not None,
                    "algorithm": collective.algorithm,
                    "exposed": bar.exposed,
                }
            events.append(
                {
                    "name": collective.op if collective else step.op,
                    "cat": "communication" if collective else "compute",
                    "ph": "X",
                    "ts": bar.start_s * 1e6,
                    "dur": bar.duration_s * 1e6,
                    "pid": _PROCESS,
                    "tid": number,
                    "args": arguments,
                }
            )
    return {"displayTimeUnit": "ns", "traceEvents": events}


def _process_name(recording: Recording) -> str:
    chip = f" ({recording.hardware})" if recording.hardware else ""
    return f"{recording.title} on {mesh_text(recording.mesh)}, one device{chip}"


def _metadata(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": _PROCESS, "tid": thread, "args": {"name": name}}
