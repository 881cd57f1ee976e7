"""A report as text, in colour, and as HTML: findings gravest first, each with its line and its fix.

Reading files is not for a renderer: whoever has them passes `excerpt`, which gives the text of a
source line or nothing.

Findings as Markdown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING

from shardlab._text.printable import printable_text
from shardlab._text.units import count_text
from shardlab.findings.finding import Finding
from shardlab.findings.report import Report, most_severe_first
from shardlab.findings.source import SourceLocation
from shardlab.render.markdown import escape_markdown
from shardlab.render.sheet import STYLE
from shardlab.render.terminal import DEFAULT_WIDTH, Line, Span, lines_rich, lines_text

if TYPE_CHECKING:
    from rich.text import Text


Excerpt = Callable[[SourceLocation], str]

_INKS = {"error": "red", "warning": "yellow", "info": "blue"}
# Readable on white and on black alike.
_COLOURS = {"error": "#D1453B", "warning": "#B7791F", "info": "#3B82C4"}


def no_excerpt(source: SourceLocation) -> str:
    """Return nothing: the files are not at hand."""
    return ""


def report_text(report: Report, width: int = DEFAULT_WIDTH, excerpt: Excerpt = no_excerpt) -> str:
    """Return a report as plain text.

    >>> found = Finding("waste.replicated", "warning", "It is large.", SourceLocation("a.py", 3), "Cut it.")
    >>> print(report_text(Report((found,), "step", ("x=4",)), excerpt=lambda source: "f(x)"))
    warning [waste.replicated] It is large.
      a.py:3
        3 | f(x)
      try: Cut it.
    <BLANKLINE>
    step on x=4: 1 warning, no errors
    """
    return lines_text(report_lines(report, width, excerpt))


def report_rich(report: Report, width: int = DEFAULT_WIDTH, excerpt: Excerpt = no_excerpt) -> Text:
    """Return a report for rich to print in colour."""
    return lines_rich(report_lines(report, width, excerpt))


def report_lines(report: Report, width: int, excerpt: Excerpt) -> Iterator[Line]:
    """Yield each finding in its parts, what was silenced and left out, and a line that counts."""
    width = max(width, 40)
    for found in most_severe_first(report.findings):
        yield from finding_lines(found, width, excerpt)
        yield []
    silenced = _silenced_text(report)
    for said in (*([silenced] if silenced else []), *(f"note: {each}" for each in report.notes)):
        yield from ([Span(text=line, is_faint=True)] for line in wrap(said, width))
    ink = next((_INKS[found.severity] for found in most_severe_first(report.findings)), "green")
    for line in wrap(summary_text(report), width):
        yield [Span(text=line, is_strong=True, ink=ink)]


def summary_text(report: Report) -> str:
    """Return the one line that counts.

    >>> summary_text(Report((), "step", ("x=2", "x=4")))
    'step on x=2 and x=4: nothing found'
    """
    counts = {severity: len(report.of(severity)) for severity in ("error", "warning", "info")}
    said = [
        f"{n:,} info" if severity == "info" else count_text(n, severity)
        for severity, n in counts.items()
        if n
    ]
    if said and not counts["error"]:
        said.append("no errors")
    what = report.program or "the program"
    if not report.is_compared:
        said.append("nothing was compared")
    return f"{what}{_meshes_text(report.meshes)}: {', '.join(said) or 'nothing found'}"


def _meshes_text(meshes: tuple[str, ...]) -> str:
    if not meshes:
        return ""
    if len(meshes) > 8:
        return f" on {len(meshes)} meshes"
    *first, last = meshes
    return f" on {', '.join(first)}{' and ' if first else ''}{last}"


def finding_lines(found: Finding, width: int, excerpt: Excerpt) -> Iterator[Line]:
    """Yield one finding in its parts."""
    head = f"{found.severity} [{found.code}] "
    lines = wrap(head + found.what, width, subsequent_indent="  ")
    yield [
        Span(text=head, is_strong=True, ink=_INKS[found.severity]),
        Span(text=lines[0][len(head) :], is_strong=True),
    ]
    yield from ([Span(text=line, is_strong=True)] for line in lines[1:])
    if found.where is not None:
        yield [Span(text=f"  {found.where}")]
        quoted = excerpt(found.where).strip()
        if quoted:
            room = width - 12
            quoted = quoted if len(quoted) <= room else f"{quoted[: room - 4]} ..."
            yield [Span(text=f"    {found.where.line} | ", is_faint=True), Span(text=quoted)]
    for shown in found.shows:
        yield from ([Span(text=line)] for line in _folded(f"    {shown}", width))
    if found.fix:
        advice = wrap(f"  try: {found.fix}", width, subsequent_indent=" " * len("  try: "))
        yield from ([Span(text=line, ink="green")] for line in advice)


def _folded(text: str, width: int) -> list[str]:
    """Return a line of evidence in as many lines as it takes: nothing of it is cut off.

    >>> _folded("  on x=2: [1.5 2.5 3.5], 3 of 3 elements differ", 30)
    ['  on x=2: [1.5 2.5 3.5], 3 of', '      3 elements differ']
    """
    words = text.lstrip()
    # JAX's own further lines begin where its words do.
    margin = len(text) - len(words) + (len("JAX: ") if words.startswith("JAX: ") else 4)
    return wrap(text, width, subsequent_indent=" " * margin, break_on_hyphens=False)


def _silenced_text(report: Report) -> str:
    if not report.suppressed:
        return ""
    reasons: dict[str, int] = {}
    for each in report.suppressed:
        said = f"{each.finding.code} ({each.reason})"
        reasons[said] = reasons.get(said, 0) + 1
    kinds = (f"{said} ×{n}" if n > 1 else said for said, n in reasons.items())
    return f"silenced: {', '.join(kinds)}"


def report_html(report: Report, excerpt: Excerpt = no_excerpt) -> str:
    """Return a report as an HTML fragment that is right on light and on dark pages."""
    parts = [STYLE, '<div class="shardlab">', f"<h4>{escape(summary_text(report))}</h4>"]
    parts += [finding_html(found, excerpt) for found in most_severe_first(report.findings)]
    silenced = _silenced_text(report)
    said = [*([silenced] if silenced else []), *(f"note: {each}" for each in report.notes)]
    parts += [f'<p style="opacity:.65">{escape(line)}</p>' for line in said]
    return "\n".join([*parts, "</div>"])


def finding_html(found: Finding, excerpt: Excerpt) -> str:
    """Return one finding as an HTML fragment."""
    colour = _COLOURS[found.severity]
    parts = [
        f'<div style="border-left:3px solid {colour};padding-left:.7em;margin:.6em 0">'
        f'<p><b style="color:{colour}">{found.severity}</b> <code>{escape(found.code)}</code> '
        f"{escape(found.what)}</p>"
    ]
    if found.where is not None:
        parts.append(f"<p><code>{escape(str(found.where))}</code></p>")
        quoted = excerpt(found.where).strip()
        if quoted:
            parts.append(f"<pre style='margin:.2em 0'>{found.where.line} | {escape(quoted)}</pre>")
    if found.shows:
        parts.append(f"<pre style='margin:.2em 0'>{escape(chr(10).join(found.shows))}</pre>")
    if found.fix:
        parts.append(f"<p><b>try</b> {escape(found.fix)}</p>")
    return "".join([*parts, "</div>"])


def finding_markdown(found: Finding) -> str:
    """Return a finding as an item of a list."""
    lines = [f"- **{found.severity}** `{found.code}` {escape_markdown(printable_text(found.what))}"]
    lines += [f"  - {escape_markdown(printable_text(line.strip()))}" for line in found.shows]
    lines += [f"  - try: {escape_markdown(printable_text(found.fix))}"] if found.fix else []
    return "\n".join(lines)
