"""Pictures in the terminal: box-drawing characters, in color if the terminal has it.

The same boxes are readable without color, so a log file or a screen reader loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

from shardlab.render.palette import fill_color, label_color
from shardlab.render.picture import Cell, Grid, Picture

if TYPE_CHECKING:
    from rich.text import Text

DEFAULT_WIDTH = 100


@dataclass(frozen=True, kw_only=True)
class Span:
    """A run of characters in one style."""

    text: str
    fill: str | None = None
    is_strong: bool = False
    is_faint: bool = False
    ink: str = ""  # a color of the terminal's palette: red, yellow, blue, green


Line = list[Span]


def picture_text(picture: Picture, width: int = DEFAULT_WIDTH) -> str:
    """Return any picture as plain text."""
    return lines_text(draw_picture(picture, width))


def picture_rich(picture: Picture, width: int = DEFAULT_WIDTH) -> Text:
    """Return any picture for rich to print in color."""
    return lines_rich(draw_picture(picture, width))


def lines_text(lines: Iterable[Line]) -> str:
    """Return drawn lines as plain text."""
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines)


def lines_rich(lines: Iterable[Line]) -> Text:
    """Return drawn lines for rich to print in color."""
    from rich.text import Text  # only here: plain text must not load rich

    text = Text(no_wrap=True, overflow="crop", end="\n")
    for n, line in enumerate(lines):
        text.append("\n" if n else "")
        for span in line:
            text.append(span.text, style=_rich_style(span))
    return text


def draw_picture(picture: Picture, width: int) -> Iterator[Line]:
    """Yield the picture's lines; text wraps at the width, boxes do not."""
    width = max(width, 20)  # a pipe can report a width of 0, which `wrap` rejects
    for line in wrap(picture.title, width):
        yield [Span(text=line, is_strong=True)]
    for fact in picture.facts:
        yield from ([Span(text=line)] for line in wrap(fact, width))
    for grid in picture.grids:
        yield []
        yield [Span(text=grid.title, is_strong=True)]
        yield from _draw_grid(grid)
        for line in wrap(grid.caption, width):
            yield [Span(text=line, is_faint=True)]


def _draw_grid(grid: Grid) -> Iterator[Line]:
    widths = _column_widths(grid)
    margin = _label_width(grid)
    heads = [f" {label:<{width}} " for label, width in zip(grid.column_labels, widths, strict=True)]
    if any(grid.column_labels):
        yield [Span(text=" " * margin + " ".join(["", *heads]), is_faint=True)]
    yield _draw_rule("┌┬┐", widths, margin)
    for index, (label, row) in enumerate(zip(grid.row_labels, grid.cells, strict=True)):
        if index:
            yield _draw_rule("├┼┤", widths, margin)
        yield from _draw_row(label, row, widths, margin)
    yield _draw_rule("└┴┘", widths, margin)


def _draw_row(
    label: str, row: Sequence[Cell], widths: Sequence[int], margin: int
) -> Iterator[Line]:
    for n in range(max(len(cell.lines) for cell in row)):
        line = [Span(text=f"{label if n == 0 else '':<{margin}}", is_faint=True)]
        for cell, width in zip(row, widths, strict=True):
            text = cell.lines[n] if n < len(cell.lines) else ""
            fill = None if cell.color_number is None else fill_color(cell.color_number)
            line += [Span(text="│"), Span(text=f" {text:<{width}} ", fill=fill)]
        yield [*line, Span(text="│")]


def _draw_rule(corners: str, widths: Sequence[int], margin: int) -> Line:
    start, joint, end = corners[0], corners[1], corners[2]
    dashes = joint.join("─" * (width + 2) for width in widths)
    return [Span(text=f"{' ' * margin}{start}{dashes}{end}")]


def _column_widths(grid: Grid) -> list[int]:
    """Return one width for all columns, except a narrower one for the dots of a gap."""
    texts = [text for row in grid.cells for cell in row for text in cell.lines]
    width = max(map(len, [*texts, *grid.column_labels]))
    return [1 if label == "⋯" else width for label in grid.column_labels]


def _label_width(grid: Grid) -> int:
    widest = max(map(len, grid.row_labels))
    return widest + 1 if widest else 0


def grid_width(grid: Grid) -> int:
    """Return the number of terminal columns that a grid takes."""
    return _label_width(grid) + sum(width + 3 for width in _column_widths(grid)) + 1


def _rich_style(span: Span) -> str:
    if span.fill is not None:
        return f"{label_color(span.fill)} on {span.fill}"
    emphasis = "bold" if span.is_strong else "dim" if span.is_faint else ""
    return f"{emphasis} {span.ink}".strip()
