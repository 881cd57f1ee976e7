"""Pictures in the terminal: boxes drawn with characters, coloured where colour exists.

The same boxes are text without colour, so that a log file or a screen reader loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import TYPE_CHECKING

from shardlab.layouts.shards import Layout
from shardlab.render.palette import fill_of, label_on
from shardlab.render.picture import Cell, Grid, Picture, Room, layout_picture

if TYPE_CHECKING:
    from rich.text import Text

DEFAULT_WIDTH = 100
# Tried in turn until one is narrow enough: a few rows always, so that a picture fits a screen.
_ROOMS = (
    Room(rows=8, columns=16),
    Room(rows=8, columns=16, is_compact=True),
    Room(rows=8, columns=4),
    Room(rows=8, columns=4, is_compact=True),
    Room(rows=8, columns=2, is_compact=True),
)


@dataclass(frozen=True)
class Span:
    """A run of characters of one look."""

    text: str
    fill: str | None = None
    is_strong: bool = False
    is_faint: bool = False
    ink: str = ""  # a colour of the terminal's own: red, yellow, blue, green


Line = list[Span]


def layout_text(layout: Layout, width: int = DEFAULT_WIDTH) -> str:
    """Return a layout's picture as plain text.

    >>> from shardlab.layouts.shards import layout
    >>> print(layout_text(layout((8,), "x", "x=2")))
    float32[8]  P('x')  on mesh x=2
    each device holds [4], 16 bytes
    2 slices, each on 1 device
    32 bytes once, 32 bytes on all devices
    <BLANKLINE>
    The array: 2 slices
      0:4        4:8
    ┌──────────┬──────────┐
    │ #0       │ #1       │
    │ device 0 │ device 1 │
    └──────────┴──────────┘
    across: array axis 0 (cut in 2 by x)
    <BLANKLINE>
    The mesh: 2 devices
      x=0        x=1
    ┌──────────┬──────────┐
    │ device 0 │ device 1 │
    │ #0 [0:4] │ #1 [4:8] │
    └──────────┴──────────┘
    across: x
    """
    return picture_text(fitting_picture(layout, width), width)


def layout_rich(layout: Layout, width: int = DEFAULT_WIDTH) -> Text:
    """Return a layout's picture for rich to print in colour."""
    return picture_rich(fitting_picture(layout, width), width)


def picture_text(picture: Picture, width: int = DEFAULT_WIDTH) -> str:
    """Return any picture as plain text."""
    return lines_text(draw(picture, width))


def picture_rich(picture: Picture, width: int = DEFAULT_WIDTH) -> Text:
    """Return any picture for rich to print in colour."""
    return lines_rich(draw(picture, width))


def lines_text(lines: Iterable[Line]) -> str:
    """Return drawn lines as plain text."""
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines)


def lines_rich(lines: Iterable[Line]) -> Text:
    """Return drawn lines for rich to print in colour."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="crop", end="\n")
    for n, line in enumerate(lines):
        text.append("\n" if n else "")
        for span in line:
            text.append(span.text, style=_style(span))
    return text


def fitting_picture(layout: Layout, width: int) -> Picture:
    """Return the fullest picture that fits the width, or the narrowest there is."""
    picture = layout_picture(layout, _ROOMS[0])
    for room in _ROOMS[1:]:
        if all(_width(grid) <= width for grid in picture.grids):
            break
        narrower = layout_picture(layout, room).grids
        pairs = zip(picture.grids, narrower, strict=True)
        grids = tuple(old if _width(old) <= width else new for old, new in pairs)
        picture = replace(picture, grids=grids)
    return picture


def draw(picture: Picture, width: int) -> Iterator[Line]:
    """Yield the picture's lines; words are folded to the width, boxes are not."""
    width = max(width, 20)
    for line in wrap(picture.title, width):
        yield [Span(line, is_strong=True)]
    for fact in picture.facts:
        yield from ([Span(line)] for line in wrap(fact, width))
    for grid in picture.grids:
        yield []
        yield [Span(grid.title, is_strong=True)]
        yield from _draw_grid(grid)
        for line in wrap(grid.caption, width):
            yield [Span(line, is_faint=True)]


def _draw_grid(grid: Grid) -> Iterator[Line]:
    widths = _column_widths(grid)
    margin = _margin(grid)
    heads = [f" {label:<{width}} " for label, width in zip(grid.column_labels, widths, strict=True)]
    if any(grid.column_labels):
        yield [Span(" " * margin + " ".join(["", *heads]), is_faint=True)]
    yield _rule("┌┬┐", widths, margin)
    for at, (label, row) in enumerate(zip(grid.row_labels, grid.cells, strict=True)):
        if at:
            yield _rule("├┼┤", widths, margin)
        yield from _draw_row(label, row, widths, margin)
    yield _rule("└┴┘", widths, margin)


def _draw_row(
    label: str, row: Sequence[Cell], widths: Sequence[int], margin: int
) -> Iterator[Line]:
    for n in range(max(len(cell.lines) for cell in row)):
        line = [Span(f"{label if n == 0 else '':<{margin}}", is_faint=True)]
        for cell, width in zip(row, widths, strict=True):
            text = cell.lines[n] if n < len(cell.lines) else ""
            fill = None if cell.shard is None else fill_of(cell.shard)
            line += [Span("│"), Span(f" {text:<{width}} ", fill=fill)]
        yield [*line, Span("│")]


def _rule(corners: str, widths: Sequence[int], margin: int) -> Line:
    left, middle, right = corners[0], corners[1], corners[2]
    return [Span(" " * margin + left + middle.join("─" * (w + 2) for w in widths) + right)]


def _column_widths(grid: Grid) -> list[int]:
    """Return one width for all columns of cells, a narrower one for the dots."""
    texts = [text for row in grid.cells for cell in row for text in cell.lines]
    wide = max(map(len, [*texts, *grid.column_labels]))
    return [1 if label == "⋯" else wide for label in grid.column_labels]


def _margin(grid: Grid) -> int:
    widest = max(map(len, grid.row_labels))
    return widest + 1 if widest else 0


def _width(grid: Grid) -> int:
    return _margin(grid) + sum(width + 3 for width in _column_widths(grid)) + 1


def _style(span: Span) -> str:
    if span.fill is not None:
        return f"{label_on(span.fill)} on {span.fill}"
    look = "bold" if span.is_strong else "dim" if span.is_faint else ""
    return f"{look} {span.ink}".strip()
