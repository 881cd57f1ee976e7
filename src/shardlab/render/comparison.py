"""A comparison as text, in colour, as Markdown and HTML: what was, what is, and the difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from shardlab.layouts.amount import memory_text
from shardlab.records.comparison import TOPICS, Change, Comparison
from shardlab.render.markdown import sections_markdown
from shardlab.render.plain import plain
from shardlab.render.sheet import Section, Sheet, sheet_html, sheet_lines
from shardlab.render.terminal import DEFAULT_WIDTH, lines_rich, lines_text
from shardlab.render.words import count_text

if TYPE_CHECKING:
    from rich.text import Text

_HEADS = {
    "question": "What was asked",
    "total": "Each device holds",
    "tensor": "Tensors",
    "item": "Beside the tensors, by formula",
    "rule": "Rules",
    "finding": "Findings",
    "note": "Notes",
}
_MOST = 60  # changes of one kind that are listed
_MARKS = {"added": "+", "removed": "-", "changed": "~"}


def comparison_text(one: Comparison, width: int = DEFAULT_WIDTH) -> str:
    """Return what differs as plain text."""
    return lines_text(sheet_lines(comparison_sheet(one), width))


def comparison_rich(one: Comparison, width: int = DEFAULT_WIDTH) -> Text:
    """Return what differs for rich to print."""
    return lines_rich(sheet_lines(comparison_sheet(one), width))


def comparison_html(one: Comparison) -> str:
    """Return what differs as an HTML fragment."""
    return sheet_html(comparison_sheet(one))


def comparison_markdown(one: Comparison) -> str:
    """Return what differs for a pull request."""
    sheet = comparison_sheet(one)
    return "\n\n".join([f"**{sheet.title}**", *sections_markdown(sheet.sections)]) + "\n"


def comparison_sheet(one: Comparison) -> Sheet:
    """Return what differs by topic; nothing but one line where nothing does."""
    if one.same:
        return Sheet(plain(f"the same: {one.title}"), (), ())
    n = len(one.changes)
    title = plain(f"{count_text(n, 'difference')}: {one.title}")
    return Sheet(title, (), tuple(_sections(one)))


def _sections(one: Comparison) -> Iterator[Section]:
    for topic in TOPICS:
        changes = one.of(topic)
        if changes:
            lines = [_line(change) for change in changes[:_MOST]]
            if len(changes) > _MOST:
                lines.append(f"and {len(changes) - _MOST:,} more; --json has them all")
            head = _HEADS[topic]
            head += f": {_counts(changes)}" if topic in ("tensor", "finding") else ""
            yield Section(head, None, tuple(lines))


def _counts(changes: tuple[Change, ...]) -> str:
    counts = {verb: sum(change.verb == verb for change in changes) for verb in _MARKS}
    return ", ".join(f"{n:,} {verb}" for verb, n in counts.items() if n)


def _line(change: Change) -> str:
    mark = _MARKS[change.verb]
    if change.topic in ("finding", "note"):
        said = f"{mark} {change.name}: {change.new or change.old}"
    elif change.verb == "changed":
        said = f"{mark} {change.name}: {change.old} → {change.new}"
    else:
        said = f"{mark} {change.name}: {change.new or change.old}"
    return plain(said + _moved(change))


def _moved(change: Change) -> str:
    if change.old_bytes is None and change.new_bytes is None:
        return ""
    old, new = change.old_bytes or 0, change.new_bytes or 0
    if change.topic in ("total", "item") and change.verb == "changed" and old != new:
        share = f", {(new - old) / old:+.1%}".replace("%", " %") if old else ""
        return f" ({_signed(new - old)}{share})"
    if change.topic == "item":
        return ""
    if old == new:
        return ", bytes as before"
    return f", {memory_text(old)} → {memory_text(new)} a device ({_signed(new - old)})"


def _signed(n_bytes: int) -> str:
    return f"{'+' if n_bytes > 0 else '-' if n_bytes < 0 else ''}{memory_text(abs(n_bytes))}"
