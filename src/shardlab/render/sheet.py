"""The sheet: headed sections of lines and tables, drawn as text, in colour, and as HTML.

Like a picture, it is one form before anybody decides how it looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from textwrap import wrap

from shardlab.render.terminal import Line, Span

_GAP = 2  # spaces between columns
_ENOUGH, _LEAST = 18, 10  # letters that a cut column keeps while others can go, and at the end


def truncate_left(text: str, n_letters: int) -> str:
    """Return the end of a text: of a path it says most."""
    return f"…{text[len(text) - n_letters + 1 :]}" if len(text) > n_letters else text


@dataclass(frozen=True, kw_only=True)
class Column:
    """The head of a column. Where width is short, columns with `drop` go, highest first."""

    head: str
    is_number: bool = False
    drop: int = 0
    may_cut: bool = False
    keep: int = _ENOUGH  # letters that it keeps while other columns can go
    is_code: bool = False  # paths, arrays, specs: code where a renderer has it
    cut: Callable[[str, int], str] = truncate_left


@dataclass(frozen=True, kw_only=True)
class Row:
    """The cells of a row, and what is to be said beneath it; or, with none, a heading."""

    cells: tuple[str, ...]
    beneath: tuple[str, ...] = ()
    is_faint: bool = False
    heading: str = ""


@dataclass(frozen=True)
class Table:
    """Columns and rows."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Section:
    """A heading, a table, and lines of words beneath it."""

    title: str
    table: Table | None = None
    lines: tuple[str, ...] = ()
    ink: str = ""  # of the heading, in a terminal


@dataclass(frozen=True)
class Sheet:
    """A title, facts in words, and sections."""

    title: str
    facts: tuple[str, ...]
    sections: tuple[Section, ...]


def sheet_lines(sheet: Sheet, width: int) -> Iterator[Line]:
    """Yield the lines of a sheet; words are folded to the width, tables lose columns."""
    width = max(width, 40)
    if sheet.title:
        yield from _folded(sheet.title, width, is_strong=True)
    for fact in sheet.facts:
        yield from _folded(fact, width)
    for at, section in enumerate(sheet.sections):
        if at or sheet.title or sheet.facts:
            yield []
        yield from section_lines(section, width)


def section_lines(section: Section, width: int) -> Iterator[Line]:
    """Yield the lines of one section."""
    for line in wrap(section.title, width):
        yield [Span(text=line, is_strong=True, ink=section.ink)]
    if section.table is not None:
        yield from _table_lines(section.table, width)
    for said in section.lines:
        for n, line in enumerate(wrap(said, width - 4)):
            yield [Span(text=f"  {'  ' if n else ''}{line}")]


def _folded(text: str, width: int, *, is_strong: bool = False) -> Iterator[Line]:
    for line in wrap(text, width):
        yield [Span(text=line, is_strong=is_strong)]


def _table_lines(table: Table, width: int) -> Iterator[Line]:
    table, widths = _fitted(table, width - 2)
    heads = [column.head for column in table.columns]
    if any(heads):
        yield [Span(text=_row_text(heads, table.columns, widths), is_faint=True)]
    for row in table.rows:
        if row.heading:
            yield from (
                [Span(text=f"  {line}", is_strong=True)] for line in wrap(row.heading, width - 2)
            )
            continue
        yield [Span(text=_row_text(row.cells, table.columns, widths), is_faint=row.is_faint)]
        for said in row.beneath:
            yield from ([Span(text=f"    {line}", is_faint=True)] for line in wrap(said, width - 4))


def _fitted(table: Table, width: int) -> tuple[Table, list[int]]:
    """Return the table without columns that there is no room for, and the widths of the rest."""
    while True:
        widths = _widths(table)
        spare = width - sum(widths) - _GAP * (len(widths) - 1)
        cut = [at for at, column in enumerate(table.columns) if column.may_cut]
        for at in cut:
            can_drop = any(column.drop > 1 for column in table.columns)
            enough = table.columns[at].keep if can_drop else _LEAST
            shorter = max(min(enough, widths[at]), widths[at] + min(spare, 0))
            spare += widths[at] - shorter
            widths[at] = shorter
        least = max(range(len(widths)), key=lambda at: table.columns[at].drop)
        if spare >= 0 or not table.columns[least].drop:
            return table, widths
        table = _without(table, least)


def _without(table: Table, at: int) -> Table:
    def left(items: Sequence[str]) -> tuple[str, ...]:
        return (*items[:at], *items[at + 1 :])

    columns = (*table.columns[:at], *table.columns[at + 1 :])
    return Table(columns, tuple(replace(row, cells=left(row.cells)) for row in table.rows))


def _widths(table: Table) -> list[int]:
    return [
        max(map(len, (column.head, *(row.cells[at] for row in table.rows if row.cells))))
        for at, column in enumerate(table.columns)
    ]


def _row_text(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    parts = []
    for text, column, width in zip(cells, columns, widths, strict=True):
        shown = column.cut(text, width)
        parts.append(f"{shown:>{width}}" if column.is_number else f"{shown:<{width}}")
    return ("  " + (" " * _GAP).join(parts)).rstrip()


# Colours come from the page: currentColor and see-through greys are right on light and on dark.
STYLE = (
    "<style>.shardlab{font:13px/1.5 system-ui,sans-serif;max-width:80em}"
    ".shardlab table{border-collapse:collapse;margin:.2em 0 .4em}"
    ".shardlab th,.shardlab td{padding:.1em .8em .1em 0;text-align:left;font-weight:normal;"
    "background:none;color:inherit;white-space:pre;border:0}"
    ".shardlab thead th{opacity:.65}.shardlab .n{text-align:right}"
    ".shardlab tr.faint>*,.shardlab .beneath{opacity:.65}"
    ".shardlab h4{margin:.9em 0 .2em;font-size:1em;font-weight:bold}"
    ".shardlab p{margin:.1em 0}.shardlab .wide{overflow-x:auto;margin:.4em 0}"
    ".shardlab td,.shardlab tbody th,.shardlab code,.shardlab pre"
    "{font-family:ui-monospace,Menlo,Consolas,monospace}"
    "</style>"
)


def sheet_html(sheet: Sheet, *, pictures: Sequence[str] = ()) -> str:
    """Return a sheet as an HTML fragment, with SVG pictures after the facts."""
    parts = [STYLE, '<div class="shardlab">']
    if sheet.title:
        parts.append(f"<h4>{escape(sheet.title)}</h4>")
    parts += [f"<p>{escape(fact)}</p>" for fact in sheet.facts]
    parts += [scrollable_html(picture, "picture") for picture in pictures]
    parts += map(section_html, sheet.sections)
    return "\n".join([*parts, "</div>"])


def section_html(section: Section) -> str:
    """Return one section as an HTML fragment, to stand within `.shardlab`."""
    parts = [f"<h4>{escape(section.title)}</h4>"]
    if section.table is not None:
        parts.append(_table_html(section.table, section.title))
    parts += [f"<p>{escape(line)}</p>" for line in section.lines]
    return "\n".join(parts)


def scrollable_html(inner: str, label: str) -> str:
    """Return what may be wider than the screen in a box that scrolls, by keyboard too."""
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(label)}">{inner}</div>'
    )


def _table_html(table: Table, title: str) -> str:
    parts = ["<table>"]
    if any(column.head for column in table.columns):
        parts.append(f"<thead><tr>{''.join(map(_head_html, table.columns))}</tr></thead>")
    is_open = False
    for row in table.rows:
        if row.heading or not is_open:  # what stands under a heading is a group of rows
            parts.append("</tbody><tbody>" if is_open else "<tbody>")
            is_open = True
        parts.append(_row_html(row, table.columns))
    parts.append("</tbody></table>" if is_open else "</table>")
    return scrollable_html("".join(parts), title)


def _head_html(column: Column) -> str:
    kind = ' class="n"' if column.is_number else ""
    return (
        f'<th scope="col"{kind}>{escape(column.head)}</th>' if column.head else f"<td{kind}></td>"
    )


def _row_html(row: Row, columns: Sequence[Column]) -> str:
    """Return a row, whose first cell says what it is of, and what is said beneath it."""
    span = f'colspan="{len(columns)}"'
    if row.heading:
        return f'<tr><th {span} scope="rowgroup"><b>{escape(row.heading)}</b></th></tr>'
    cells = []
    for at, (cell, column) in enumerate(zip(row.cells, columns, strict=True)):
        kind = ' class="n"' if column.is_number else ""
        tag = "th" if not at and cell else "td"
        scope = ' scope="row"' if tag == "th" else ""
        cells.append(f"<{tag}{scope}{kind}>{escape(cell)}</{tag}>")
    look = ' class="faint"' if row.is_faint else ""
    beneath = "".join(
        f'<tr><td {span} class="beneath">&emsp;{escape(said)}</td></tr>' for said in row.beneath
    )
    return f"<tr{look}>{''.join(cells)}</tr>{beneath}"
