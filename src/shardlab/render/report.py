"""A report as text and HTML."""

from __future__ import annotations

from html import escape

from shardlab.records.report import Report


def report_text(report: Report) -> str:
    """Return each finding in its parts, and a line that counts them."""
    counts = ", ".join(f"{len(report.of(s))} {s}s" for s in ("error", "warning", "info"))
    return "\n".join([*map(str, report.findings), counts])


def report_html(report: Report) -> str:
    return f"<pre>{escape(report_text(report))}</pre>"
