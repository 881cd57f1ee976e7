"""Renders reports as text, in color, as HTML and as Markdown: most severe first, with line and fix.

Renderers do not read files: the caller passes `excerpt`, which returns the text of a source line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING

from shardlab._text.printable import printable_text
from shardlab._text.units import count_text
from shardlab.findings.finding import Finding, Severity
from shardlab.findings.report import Report, most_severe_first
from shardlab.findings.scaled_proof import ScaledProof
from shardlab.findings.source import SourceLocation
from shardlab.render.markdown import escape_markdown
from shardlab.render.sheet import STYLE
from shardlab.render.terminal import DEFAULT_WIDTH, Line, Span, lines_rich, lines_text

if TYPE_CHECKING:
    from rich.text import Text


Excerpt = Callable[[SourceLocation], str]

_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
_TERMINAL_COLORS = {"error": "red", "warning": "yellow", "info": "blue"}
# Readable on white and on black backgrounds.
_HTML_COLORS = {"error": "#D1453B", "warning": "#B7791F", "info": "#3B82C4"}


def no_excerpt(source: SourceLocation) -> str:
    """Return an empty string: the source files are not available."""
    return ""


def report_text(report: Report, width: int = DEFAULT_WIDTH, excerpt: Excerpt = no_excerpt) -> str:
    """Return a report as plain text.

    >>> location = SourceLocation("a.py", 3)
    >>> finding = Finding(
    ...     code="spec.rank", severity="error", what="Too long.", where=location, fix="drop one."
    ... )
    >>> report = Report(findings=(finding,), program="step", meshes=("x=4",))
    >>> print(report_text(report, excerpt=lambda source: "f(x)"))
    error [spec.rank] Too long.
      a.py:3
        3 | f(x)
      try: drop one.
    <BLANKLINE>
    step on x=4: 1 error
    """
    return lines_text(report_lines(report, width, excerpt))


def report_rich(report: Report, width: int = DEFAULT_WIDTH, excerpt: Excerpt = no_excerpt) -> Text:
    """Return a report for rich to print in color."""
    return lines_rich(report_lines(report, width, excerpt))


def report_lines(report: Report, width: int, excerpt: Excerpt) -> Iterator[Line]:
    """Yield the findings, suppressed findings, notes, and a summary line."""
    width = max(width, 40)
    findings = most_severe_first(report.findings)
    for finding in findings:
        yield from finding_lines(finding, width, excerpt)
        yield []
    for proof in report.scaled:
        yield from proof_lines(proof, width)
        yield []
    for note in _report_notes(report):
        yield from ([Span(text=line, is_faint=True)] for line in wrap(note, width))
    ink = _TERMINAL_COLORS[findings[0].severity] if findings else "green"
    for line in wrap(summary_text(report), width):
        yield [Span(text=line, is_strong=True, ink=ink)]


def summary_text(report: Report) -> str:
    """Return one line with the number of findings by severity.

    >>> summary_text(Report(findings=(), program="step", meshes=("x=2", "x=4")))
    'step on x=2 and x=4: nothing found'
    """
    counts = {severity: len(report.with_severity(severity)) for severity in _SEVERITIES}
    parts = [
        f"{n:,} info" if severity == "info" else count_text(n, severity)
        for severity, n in counts.items()
        if n
    ]
    if parts and not counts["error"]:
        parts.append("no errors")  # the exit code is 0: only errors make a report not ok
    text = ", ".join(parts) or "nothing found"
    unproven = [proof.mesh for proof in report.scaled if not proof.carries_over]
    if unproven:
        text += f"; not proven on {' and '.join(unproven)}"
    elif not report.is_compared:
        text += "; values were not compared"
    return f"{report.program or 'the program'}{_meshes_text(report.meshes)}: {text}"


def _meshes_text(meshes: tuple[str, ...]) -> str:
    if not meshes:
        return ""
    if len(meshes) > 8:  # a sweep over test meshes; the list would be longer than the findings
        return f" on {len(meshes)} meshes"
    *first, last = meshes
    return f" on {', '.join(first)}{' and ' if first else ''}{last}"


def finding_lines(finding: Finding, width: int, excerpt: Excerpt) -> Iterator[Line]:
    """Yield the lines of one finding."""
    head = f"{finding.severity} [{finding.code}] "
    # Wrapped together, then split: the code has its own color but takes part in the wrapping.
    lines = wrap(head + finding.what, width, subsequent_indent="  ")
    yield [
        Span(text=head, is_strong=True, ink=_TERMINAL_COLORS[finding.severity]),
        Span(text=lines[0][len(head) :], is_strong=True),
    ]
    yield from ([Span(text=line, is_strong=True)] for line in lines[1:])
    if finding.where is not None:
        yield [Span(text=f"  {finding.where}")]
        source_line = excerpt(finding.where).strip()
        if source_line:
            max_length = width - 12  # indentation, line number and bar
            if len(source_line) > max_length:
                source_line = f"{source_line[: max_length - 4]} ..."
            number = Span(text=f"    {finding.where.line} | ", is_faint=True)
            yield [number, Span(text=source_line)]
    for evidence in finding.shows:
        yield from ([Span(text=line)] for line in _wrap_evidence(f"    {evidence}", width))
    if finding.fix:
        advice = wrap(f"  try: {finding.fix}", width, subsequent_indent=" " * len("  try: "))
        yield from ([Span(text=line, ink="green")] for line in advice)


def proof_lines(proof: ScaledProof, width: int) -> Iterator[Line]:
    """Yield why a mesh was not run, and each obligation of its scaled-down check.

    >>> from shardlab.findings.scaled_proof import Obligation
    >>> obligation = Obligation(name="values", holds=True, what="right on each small mesh")
    >>> proof = ScaledProof(mesh="x=64", reason="too large", obligations=(obligation,))
    >>> print(lines_text(proof_lines(proof, 80)))
    x=64 was not run: too large.
      holds  values: right on each small mesh
    All obligations hold: the result carries over to x=64.
    """
    places = "; ".join(proof.scaled_meshes)
    stands_for = f" For it stand {places}, with shards of the same shapes." if places else ""
    yield from _plain_lines(f"{proof.mesh} was not run: {proof.reason}.{stands_for}", width)
    for item in proof.obligations:
        ink = "green" if item.holds else "red"
        head = "  holds  " if item.holds else "  FAILS  "
        place = f" ({item.where})" if item.where else ""
        lines = wrap(f"{item.name}: {item.what}{place}", width - len(head))
        yield [Span(text=head, ink=ink, is_strong=not item.holds), Span(text=lines[0])]
        yield from ([Span(text=" " * len(head) + line)] for line in lines[1:])
    if proof.carries_over:
        text = f"All obligations hold: the result carries over to {proof.mesh}."
    else:
        text = f"Not proven on {proof.mesh}: an obligation fails."
    yield from _plain_lines(text, width)


def _plain_lines(text: str, width: int) -> Iterator[Line]:
    yield from ([Span(text=line)] for line in wrap(text, width))


def _wrap_evidence(text: str, width: int) -> list[str]:
    """Return a line of evidence wrapped with a hanging indent; nothing of it is truncated.

    >>> _wrap_evidence("  on x=2: [1.5 2.5 3.5], 3 of 3 elements differ", 30)
    ['  on x=2: [1.5 2.5 3.5], 3 of', '      3 elements differ']
    """
    content = text.lstrip()
    # Further lines of a JAX message are indented to where its first line starts.
    hanging = len("JAX: ") if content.startswith("JAX: ") else 4
    indent = " " * (len(text) - len(content) + hanging)
    return wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)


def _report_notes(report: Report) -> list[str]:
    notes = [f"note: {note}" for note in report.notes]
    if report.suppressed:
        reasons = Counter(f"{item.finding.code} ({item.reason})" for item in report.suppressed)
        kinds = (f"{reason} ×{n}" if n > 1 else reason for reason, n in reasons.items())
        notes.insert(0, f"suppressed: {', '.join(kinds)}")
    return notes


def report_html(report: Report, excerpt: Excerpt = no_excerpt) -> str:
    """Return a report as an HTML fragment for light and dark pages."""
    parts = [STYLE, '<div class="shardlab">', f"<h4>{escape(summary_text(report))}</h4>"]
    parts += [finding_html(finding, excerpt) for finding in most_severe_first(report.findings)]
    for proof in report.scaled:
        proof_text = lines_text(proof_lines(proof, DEFAULT_WIDTH))
        parts.append(f"<pre style='margin:.6em 0'>{escape(proof_text)}</pre>")
    parts += [f'<p style="opacity:.65">{escape(note)}</p>' for note in _report_notes(report)]
    return "\n".join([*parts, "</div>"])


def finding_html(finding: Finding, excerpt: Excerpt) -> str:
    """Return one finding as an HTML fragment."""
    color = _HTML_COLORS[finding.severity]
    parts = [
        f'<div style="border-left:3px solid {color};padding-left:.7em;margin:.6em 0">'
        f'<p><b style="color:{color}">{finding.severity}</b> <code>{escape(finding.code)}</code> '
        f"{escape(finding.what)}</p>"
    ]
    if finding.where is not None:
        parts.append(f"<p><code>{escape(str(finding.where))}</code></p>")
        source_line = excerpt(finding.where).strip()
        if source_line:
            quote = f"{finding.where.line} | {escape(source_line)}"
            parts.append(f"<pre style='margin:.2em 0'>{quote}</pre>")
    if finding.shows:
        evidence = escape("\n".join(finding.shows))
        parts.append(f"<pre style='margin:.2em 0'>{evidence}</pre>")
    if finding.fix:
        parts.append(f"<p><b>try</b> {escape(finding.fix)}</p>")
    return "".join([*parts, "</div>"])


def finding_markdown(finding: Finding) -> str:
    """Return a finding as an item of a Markdown list."""
    message = escape_markdown(printable_text(finding.what))
    lines = [f"- **{finding.severity}** `{finding.code}` {message}"]
    lines += [f"  - {escape_markdown(printable_text(line.strip()))}" for line in finding.shows]
    lines += [f"  - try: {escape_markdown(printable_text(finding.fix))}"] if finding.fix else []
    return "\n".join(lines)
