"""The sheet: titled sections of lines and tables, rendered as terminal lines and as HTML.

Like a picture, it is independent of the output format; `markdown.py` renders it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from textwrap import wrap

from shardlab.render.palette import Color
from shardlab.render.terminal import Line, Span

_GAP = 2  # spaces between columns
# Letters that a truncated column keeps: while other columns can still be dropped, and at the end.
_COMFORTABLE_WIDTH, _MIN_WIDTH = 18, 10


def truncate_start(text: str, n_letters: int) -> str:
    """Return the end of a text: the last components say most about a path."""
    return f"…{text[len(text) - n_letters + 1 :]}" if len(text) > n_letters else text


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table. In a narrow terminal, columns with `drop` go first, highest first.

    A column with `can_truncate` is truncated by `truncate` before columns are dropped, but to no
    less than `min_width` letters. `is_code` marks paths, arrays and specs for renderers that have a
    code style, `is_bar` bars of block characters, which these draw fainter than text.
    """

    head: str
    is_number: bool = False
    drop: int = 0
    can_truncate: bool = False
    min_width: int = _COMFORTABLE_WIDTH
    is_code: bool = False
    is_bar: bool = False
    truncate: Callable[[str, int], str] = truncate_start


@dataclass(frozen=True, kw_only=True)
class Row:
    """The cells of a row and the lines shown below it; or, without cells, a heading."""

    cells: tuple[str, ...]
    notes: tuple[str, ...] = ()
    is_faint: bool = False
    heading: str = ""
    bar_color: Color | None = None  # of its bar, where a color has a meaning: a mesh axis


@dataclass(frozen=True)
class Table:
    """Columns and rows."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Section:
    """A heading, a table, and lines of text below it."""

    title: str
    table: Table | None = None
    lines: tuple[str, ...] = ()
    ink: str = ""  # terminal color of the heading


@dataclass(frozen=True)
class Sheet:
    """A title, facts as text, and sections."""

    title: str
    facts: tuple[str, ...]
    sections: tuple[Section, ...]


def sheet_lines(sheet: Sheet, width: int) -> Iterator[Line]:
    """Yield the lines of a sheet; text wraps at the width, tables drop columns."""
    width = max(width, 40)
    if sheet.title:
        yield from _wrapped_lines(sheet.title, width, is_strong=True)
    for fact in sheet.facts:
        yield from _wrapped_lines(fact, width)
    for index, section in enumerate(sheet.sections):
        if index or sheet.title or sheet.facts:
            yield []
        yield from section_lines(section, width)


def section_lines(section: Section, width: int) -> Iterator[Line]:
    """Yield the lines of one section."""
    for line in wrap(section.title, width):
        yield [Span(text=line, is_strong=True, ink=section.ink)]
    if section.table is not None:
        yield from _table_lines(section.table, width)
    for paragraph in section.lines:
        # Not at hyphens: a flag such as --num-layers must stay one word to copy.
        for n, line in enumerate(wrap(paragraph, width - 4, break_on_hyphens=False)):
            yield [Span(text=f"  {'  ' if n else ''}{line}")]


def _wrapped_lines(text: str, width: int, *, is_strong: bool = False) -> Iterator[Line]:
    for line in wrap(text, width):
        yield [Span(text=line, is_strong=is_strong)]


def _table_lines(table: Table, width: int) -> Iterator[Line]:
    table, widths = _fit_table(table, width - 2)
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
        for note in row.notes:
            yield from ([Span(text=f"    {line}", is_faint=True)] for line in wrap(note, width - 4))


def _fit_table(table: Table, width: int) -> tuple[Table, list[int]]:
    """Return the table without the columns that do not fit, and the widths of the others."""
    # One round: truncate what may be truncated; if that is not enough, drop the least important
    # column and start again with its width to spare.
    while True:
        widths = _column_widths(table)
        spare = width - sum(widths) - _GAP * (len(widths) - 1)
        # Truncate to a readable width while columns can still be dropped, to the minimum after.
        truncatable = [index for index, column in enumerate(table.columns) if column.can_truncate]
        for index in truncatable:
            can_drop = any(column.drop > 1 for column in table.columns)
            min_width = table.columns[index].min_width if can_drop else _MIN_WIDTH
            shorter = max(min(min_width, widths[index]), widths[index] + min(spare, 0))
            spare += widths[index] - shorter
            widths[index] = shorter
        least = max(range(len(widths)), key=lambda index: table.columns[index].drop)
        if spare >= 0 or not table.columns[least].drop:
            return table, widths
        table = _drop_column(table, least)


def _drop_column(table: Table, dropped: int) -> Table:
    columns = (*table.columns[:dropped], *table.columns[dropped + 1 :])
    rows = (
        replace(row, cells=(*row.cells[:dropped], *row.cells[dropped + 1 :])) for row in table.rows
    )
    return Table(columns, tuple(rows))


def _column_widths(table: Table) -> list[int]:
    return [
        max(map(len, (column.head, *(row.cells[index] for row in table.rows if row.cells))))
        for index, column in enumerate(table.columns)
    ]


def _row_text(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    parts = []
    for text, column, width in zip(cells, columns, widths, strict=True):
        cell = column.truncate(text, width)
        parts.append(f"{cell:>{width}}" if column.is_number else f"{cell:<{width}}")
    return ("  " + (" " * _GAP).join(parts)).rstrip()


# Colors come from the page: currentColor and opacity work on light and on dark backgrounds. Text is
# proportional, with figures of one width in numbers; only code is monospace.
STYLE = (
    "<style>.shardlab{font:14px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;"
    "max-width:80em}"
    ".shardlab table{border-collapse:collapse;margin:.2em 0 .4em}"
    ".shardlab th,.shardlab td{padding:.2em 1.1em .2em 0;text-align:left;font-weight:normal;"
    "background:none;color:inherit;white-space:pre;border:0;vertical-align:top}"
    ".shardlab tr>:last-child{padding-right:.2em}"
    ".shardlab thead th{opacity:.7;font-size:.92em}"
    ".shardlab tbody tr{border-top:1px solid color-mix(in srgb,currentColor 14%,transparent)}"
    ".shardlab .n{text-align:right;font-variant-numeric:tabular-nums}"
    ".shardlab tr.faint>*,.shardlab .beneath{opacity:.7}"
    ".shardlab tr>.b{opacity:.4;letter-spacing:-.06em}"
    ".shardlab tr>.b.h{opacity:1}"
    ".shardlab .beneath{white-space:normal;padding-left:1.4em}"
    ".shardlab tr:has(>.beneath){border-top:0}"
    ".shardlab h4{margin:1.1em 0 .3em;font-size:1.05em;font-weight:600}"
    ".shardlab p{margin:.1em 0}.shardlab .wide{overflow-x:auto;margin:.5em 0;max-width:100%}"
    ".shardlab .c,.shardlab code,.shardlab pre"
    "{font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:.93em}"
    # A narrow screen: figures say what bars do, and pictures scroll less far.
    "@media (max-width:640px){.shardlab tr>.b{display:none}"
    ".shardlab th,.shardlab td{padding-right:.7em}"
    ".shardlab .wide>svg{max-width:52em;height:auto}}"
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
    """Return one section as an HTML fragment, to be placed inside `.shardlab`."""
    parts = [f"<h4>{escape(section.title)}</h4>"]
    if section.table is not None:
        parts.append(_table_html(section.table, section.title))
    parts += [f"<p>{escape(line)}</p>" for line in section.lines]
    return "\n".join(parts)


def scrollable_html(inner: str, label: str) -> str:
    """Return content that can be wider than the screen in a box that scrolls, also by keyboard."""
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(label)}">{inner}</div>'
    )


def _table_html(table: Table, title: str) -> str:
    parts = ["<table>"]
    if any(column.head for column in table.columns):
        parts.append(f"<thead><tr>{''.join(map(_head_html, table.columns))}</tr></thead>")
    is_open = False
    for row in table.rows:
        if row.heading or not is_open:  # rows below a heading are one <tbody>
            parts.append("</tbody><tbody>" if is_open else "<tbody>")
            is_open = True
        parts.append(_row_html(row, table.columns))
    parts.append("</tbody></table>" if is_open else "</table>")
    return scrollable_html("".join(parts), title)


def _head_html(column: Column) -> str:
    css_number = ' class="n"' if column.is_number else ' class="b"' if column.is_bar else ""
    return (
        f'<th scope="col"{css_number}>{escape(column.head)}</th>'
        if column.head
        else f"<td{css_number}></td>"
    )


def _bar_attributes(color: Color) -> str:
    # Strong on either paper; a page without light-dark() shows the value of light paper.
    return f' class="b h" style="color:{color.light};color:light-dark({color.light},{color.dark})"'


def _row_html(row: Row, columns: Sequence[Column]) -> str:
    """Return a row, its first cell as row header, and the lines below it."""
    span = f'colspan="{len(columns)}"'
    if row.heading:
        return f'<tr><th {span} scope="rowgroup"><b>{escape(row.heading)}</b></th></tr>'
    cells = []
    for index, (cell, column) in enumerate(zip(row.cells, columns, strict=True)):
        is_code = column.is_code and not row.is_faint
        css_number = ' class="n"' if column.is_number else ' class="c"' if is_code else ""
        if column.is_bar:
            css_number = ' class="b"' if row.bar_color is None else _bar_attributes(row.bar_color)
        # A row header needs text: screen readers announce it before every cell of the row.
        tag = "th" if not index and cell else "td"
        scope = ' scope="row"' if tag == "th" else ""
        cells.append(f"<{tag}{scope}{css_number}>{escape(cell)}</{tag}>")
    css_class = ' class="faint"' if row.is_faint else ""
    beneath = "".join(
        f'<tr><td {span} class="beneath">{escape(note)}</td></tr>' for note in row.notes
    )
    return f"<tr{css_class}>{''.join(cells)}</tr>{beneath}"
