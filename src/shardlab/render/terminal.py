"""Pictures in the terminal: box-drawing characters, in color if the terminal has it.

The same boxes are readable without color, so a log file or a screen reader loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

from shardlab.render.palette import INK, WRONG, Color, axis_shade
from shardlab.render.picture import (
    TEXTURE_TEXTS,
    AxisKey,
    Cell,
    Grid,
    Picture,
    Texture,
    grid_textures,
)

if TYPE_CHECKING:
    from rich.text import Text

DEFAULT_WIDTH = 100
# A texture is a sign at the end of the first line: terminals cannot hatch, logs have no color.
TEXTURE_SIGNS: dict[Texture, str] = {"replica": "╱", "partial": "Σ", "wrong": "≠"}


@dataclass(frozen=True, kw_only=True)
class Span:
    """A run of characters in one style."""

    text: str
    fill: Color | None = None
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
    yield from draw_keys(picture.keys, width)
    for grid in picture.grids:
        yield []
        yield [Span(text=grid.title, is_strong=True)]
        yield from _draw_grid(grid, width)
        for line in wrap(grid.caption, width):
            yield [Span(text=line, is_faint=True)]
    for texture in grid_textures(picture.grids):
        text = f"{TEXTURE_SIGNS[texture]} {TEXTURE_TEXTS[texture]}"
        yield from ([Span(text=line, is_faint=True)] for line in wrap(text, width))


def draw_keys(keys: Sequence[AxisKey], width: int) -> Iterator[Line]:
    """Yield what each mesh axis does, its name in its hue."""
    line: Line = []
    for key in keys:
        name, role = f"{key.name}={key.size:,}", f" {key.role}" if key.role else ""
        color = axis_shade(key.axis, key.size - 1, key.size)
        entry = [Span(text=name, fill=color), Span(text=role, is_faint=True)]
        used = sum(len(span.text) for span in line)
        if line and used + len(name + role) + 3 > width:
            yield line
            line = []
        line = [*line, Span(text="   "), *entry] if line else entry
    if line:
        yield line


def _draw_grid(grid: Grid, width: int) -> Iterator[Line]:
    axes = [
        f"{sign} {text}" for sign, text in (("↓", grid.row_axis), ("→", grid.column_axis)) if text
    ]
    # Both on one line above the grid if they fit: the picture then stays on one screen.
    together = "   ".join(axes)
    for text in [together] if len(together) <= width else axes:
        yield from ([Span(text=line, is_faint=True)] for line in wrap(text, width))
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
            line += [Span(text="│"), *_draw_cell_line(cell, n, width)]
        yield [*line, Span(text="│")]


def _draw_cell_line(cell: Cell, n: int, width: int) -> Iterator[Span]:
    """Yield one line of a cell: text on the first color, its sign, a swatch per further color."""
    text = cell.lines[n] if n < len(cell.lines) else ""
    if cell.paint is None:
        yield Span(text=f" {text:<{width}} ")
        return
    first, *others = cell.paint.colors
    if cell.paint.texture == "wrong":
        first, others = WRONG, []
    sign = TEXTURE_SIGNS.get(cell.paint.texture, "") if n == 0 else ""
    room = width - len(sign) - len(others)
    yield Span(text=f" {text:<{room}}{sign}{'' if others else ' '}", fill=first)
    for number, color in enumerate(others):
        yield Span(text="  " if number == len(others) - 1 else " ", fill=color)


def _draw_rule(corners: str, widths: Sequence[int], margin: int) -> Line:
    start, joint, end = corners[0], corners[1], corners[2]
    dashes = joint.join("─" * (width + 2) for width in widths)
    return [Span(text=f"{' ' * margin}{start}{dashes}{end}")]


def _column_widths(grid: Grid) -> list[int]:
    """Return one width for all columns, except a narrower one for the dots of a gap."""
    sizes = [
        len(text) + _extra_width(cell, n)
        for row in grid.cells
        for cell in row
        for n, text in enumerate(cell.lines)
    ]
    width = max([*sizes, *map(len, grid.column_labels)])
    return [1 if label == "⋯" else width for label in grid.column_labels]


def _extra_width(cell: Cell, n: int) -> int:
    """Return the columns that a cell needs beside its text: for its sign and its swatches."""
    if cell.paint is None:
        return 0
    has_sign = n == 0 and cell.paint.texture in TEXTURE_SIGNS
    return (2 if has_sign else 0) + (len(cell.paint.colors) if len(cell.paint.colors) > 1 else 0)


def _label_width(grid: Grid) -> int:
    widest = max(map(len, grid.row_labels))
    return widest + 1 if widest else 0


def grid_width(grid: Grid) -> int:
    """Return the number of terminal columns that a grid takes."""
    return _label_width(grid) + sum(width + 3 for width in _column_widths(grid)) + 1


def _rich_style(span: Span) -> str:
    if span.fill is not None:
        # A terminal's background is unknown; a light fill with dark ink is readable on any.
        return f"{INK.light} on {span.fill.light}"
    emphasis = "bold" if span.is_strong else "dim" if span.is_faint else ""
    return f"{emphasis} {span.ink}".strip()
