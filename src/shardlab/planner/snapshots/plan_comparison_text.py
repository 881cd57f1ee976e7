"""A comparison as text, in color, as Markdown and HTML: old value, new value, difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from shardlab._text.printable import printable_text
from shardlab._text.units import bytes_text, count_text
from shardlab.planner.snapshots.plan_comparison import TOPICS, Change, Comparison
from shardlab.render.markdown import escape_markdown, sections_markdown
from shardlab.render.sheet import Column, Row, Section, Sheet, Table, sheet_html, sheet_lines
from shardlab.render.terminal import DEFAULT_WIDTH, lines_rich, lines_text

if TYPE_CHECKING:
    from rich.text import Text

_TITLES = {
    "question": "What was planned",
    "total": "Memory per device",
    "tensor": "Tensors",
    "item": "Other memory, by formula",
    "rule": "Rules",
    "finding": "Findings",
}
_TOPICS_IN_BYTES = ("total", "tensor", "item")
_MAX_CHANGES = 60  # listed per topic
_MARKS = {"added": "+", "removed": "-", "changed": "~"}


def comparison_text(comparison: Comparison, width: int = DEFAULT_WIDTH) -> str:
    """Return the differences as plain text."""
    return lines_text(sheet_lines(comparison_sheet(comparison), width))


def comparison_rich(comparison: Comparison, width: int = DEFAULT_WIDTH) -> Text:
    """Return the differences for rich to print."""
    return lines_rich(sheet_lines(comparison_sheet(comparison), width))


def comparison_html(comparison: Comparison) -> str:
    """Return the differences as an HTML fragment."""
    return sheet_html(comparison_sheet(comparison))


def comparison_markdown(comparison: Comparison) -> str:
    """Return the differences for a pull request."""
    sheet = comparison_sheet(comparison)
    parts = [f"**{escape_markdown(sheet.title)}**", *sections_markdown(sheet.sections)]
    return "\n\n".join(parts) + "\n"


def comparison_sheet(comparison: Comparison) -> Sheet:
    """Return the differences by topic; only one line if there are none."""
    if comparison.same:
        return Sheet(printable_text(f"the same: {comparison.title}"), (), ())
    count = count_text(len(comparison.changes), "difference")
    title = printable_text(f"{count}: {comparison.title}")
    return Sheet(title, (), tuple(_comparison_sections(comparison)))


def _comparison_sections(comparison: Comparison) -> Iterator[Section]:
    for topic in TOPICS:
        changes = comparison.changes_of(topic)
        if not changes:
            continue
        title = _TITLES[topic]
        title += f": {_counts_text(changes)}" if topic in ("tensor", "finding") else ""
        n_hidden = len(changes) - _MAX_CHANGES
        hidden_note = (f"and {n_hidden:,} more; --json has them all",) if n_hidden > 0 else ()
        visible = changes[:_MAX_CHANGES]
        has_bytes = any(change.old_bytes or change.new_bytes for change in changes)
        if topic in _TOPICS_IN_BYTES and has_bytes:
            yield Section(title, _bytes_table(visible, is_code=topic == "tensor"), hidden_note)
        else:
            yield Section(title, None, (*map(_change_line, visible), *hidden_note))


def _counts_text(changes: tuple[Change, ...]) -> str:
    counts = {verb: sum(change.verb == verb for change in changes) for verb in _MARKS}
    return ", ".join(f"{count:,} {verb}" for verb, count in counts.items() if count)


def _change_line(change: Change) -> str:
    mark = _MARKS[change.verb]
    return f"{mark} {printable_text(change.name)}: {_values_text(change)}"


def _bytes_table(changes: tuple[Change, ...], *, is_code: bool) -> Table:
    """Return changes in bytes, each with its values in a line below."""
    columns = (
        Column(head="", can_truncate=True, is_code=is_code),
        Column(head="before", is_number=True),
        Column(head="now", is_number=True),
        Column(head="difference", is_number=True),
        Column(head="", is_number=True, drop=1),
    )
    return Table(columns, tuple(map(_bytes_row, changes)))


def _bytes_row(change: Change) -> Row:
    name = printable_text(f"{_MARKS[change.verb]} {change.name}")
    old, new = change.old_bytes, change.new_bytes
    if old is None and new is None:  # the verdict, or MaxText's specs
        return Row(cells=(name, "", "", "", ""), notes=(_values_text(change),))
    difference = (new or 0) - (old or 0)
    percent = ""
    if old and new and difference:
        percent = f"{difference / old:+.1%}".replace("%", " %")
    amounts = ("-" if n_bytes is None else bytes_text(n_bytes) for n_bytes in (old, new))
    cells = (name, *amounts, _signed_bytes_text(difference), percent)
    is_complete = change.topic == "total" or (change.topic == "item" and difference)
    return Row(cells=cells, notes=() if is_complete else (_values_text(change),))


def _values_text(change: Change) -> str:
    if change.verb == "changed":
        return printable_text(f"{change.old} → {change.new}")
    return printable_text(change.new or change.old)


def _signed_bytes_text(n_bytes: int) -> str:
    if not n_bytes:
        return "-"
    return f"{'+' if n_bytes > 0 else '-'}{bytes_text(abs(n_bytes))}"
