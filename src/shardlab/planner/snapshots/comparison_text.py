"""A comparison as text, in colour, as Markdown and HTML: what was, what is, and the difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from shardlab._text.printable import printable_text
from shardlab._text.units import bytes_text, count_text
from shardlab.planner.snapshots.comparison import TOPICS, Change, Comparison
from shardlab.render.markdown import escape_markdown, sections_markdown
from shardlab.render.sheet import Column, Row, Section, Sheet, Table, sheet_html, sheet_lines
from shardlab.render.terminal import DEFAULT_WIDTH, lines_rich, lines_text

if TYPE_CHECKING:
    from rich.text import Text

_HEADS = {
    "question": "What was asked",
    "total": "Each device holds",
    "tensor": "Tensors",
    "item": "Beside the tensors, by formula",
    "rule": "Rules",
    "finding": "Findings",
}
_IN_BYTES = ("total", "tensor", "item")
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
    return (
        "\n\n".join([f"**{escape_markdown(sheet.title)}**", *sections_markdown(sheet.sections)])
        + "\n"
    )


def comparison_sheet(one: Comparison) -> Sheet:
    """Return what differs by topic; nothing but one line where nothing does."""
    if one.same:
        return Sheet(printable_text(f"the same: {one.title}"), (), ())
    n = len(one.changes)
    title = printable_text(f"{count_text(n, 'difference')}: {one.title}")
    return Sheet(title, (), tuple(_sections(one)))


def _sections(one: Comparison) -> Iterator[Section]:
    for topic in TOPICS:
        changes = one.of(topic)
        if not changes:
            continue
        head = _HEADS[topic]
        head += f": {_counts(changes)}" if topic in ("tensor", "finding") else ""
        left = len(changes) - _MOST
        more = (f"and {left:,} more; --json has them all",) if left > 0 else ()
        if topic in _IN_BYTES and any(change.old_bytes or change.new_bytes for change in changes):
            yield Section(head, _table(changes[:_MOST], is_code=topic == "tensor"), more)
        else:
            yield Section(head, None, (*map(_line, changes[:_MOST]), *more))


def _counts(changes: tuple[Change, ...]) -> str:
    counts = {verb: sum(change.verb == verb for change in changes) for verb in _MARKS}
    return ", ".join(f"{n:,} {verb}" for verb, n in counts.items() if n)


def _line(change: Change) -> str:
    mark = _MARKS[change.verb]
    if change.verb == "changed":
        return printable_text(f"{mark} {change.name}: {change.old} → {change.new}")
    return printable_text(f"{mark} {change.name}: {change.new or change.old}")


def _table(changes: tuple[Change, ...], *, is_code: bool) -> Table:
    """Return changes in bytes, each with what it is beneath."""
    columns = (
        Column(head="", may_cut=True, is_code=is_code),
        Column(head="before", is_number=True),
        Column(head="now", is_number=True),
        Column(head="difference", is_number=True),
        Column(head="", is_number=True, drop=1),
    )
    return Table(columns, tuple(map(_row, changes)))


def _row(change: Change) -> Row:
    name = printable_text(f"{_MARKS[change.verb]} {change.name}")
    old, new = change.old_bytes, change.new_bytes
    if old is None and new is None:  # the verdict, or MaxText's specs, which have no bytes
        return Row(cells=(name, "", "", "", ""), beneath=(_beneath(change),))
    moved = (new or 0) - (old or 0)
    share = f"{moved / old:+.1%}".replace("%", " %") if old and moved and new else ""
    cells = (*("-" if n is None else bytes_text(n) for n in (old, new)), _signed(moved), share)
    is_told = change.topic == "total" or (change.topic == "item" and moved)
    return Row(cells=(name, *cells), beneath=() if is_told else (_beneath(change),))


def _beneath(change: Change) -> str:
    if change.verb == "changed":
        return printable_text(f"{change.old} → {change.new}")
    return printable_text(change.new or change.old)


def _signed(n_bytes: int) -> str:
    if not n_bytes:
        return "-"
    return f"{'+' if n_bytes > 0 else '-'}{bytes_text(abs(n_bytes))}"
