"""A trace as text and HTML."""

from __future__ import annotations

from html import escape

from shardlab.records.trace import Trace


def trace_text(trace: Trace) -> str:
    """Return one line for each call, and what one device sends in all."""
    lines = [
        f"{call.op} over {', '.join(call.mesh_axes)}: {call.dtype}{list(call.shape)}, "
        f"{call.wire_bytes} B sent, x{call.count}, {call.phase}, {call.source}"
        for call in trace.collectives
    ]
    return "\n".join([*lines, f"each device sends {trace.wire_bytes} bytes", *trace.notes])


def trace_html(trace: Trace) -> str:
    return f"<pre>{escape(trace_text(trace))}</pre>"
