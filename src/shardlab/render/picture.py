"""The picture: a title, facts and grids of painted cells, independent of the output format.

Terminal, SVG and HTML renderers all draw this one form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from shardlab.render.palette import Color, axis_shade, slate_shade

_N_FIRST = 3  # rows or columns before the gap of an abridged grid
GAP = -1  # stands for the rows or columns that are left out

# How much a cell says: several lines, one line, or a number.
Detail = Literal["full", "compact", "number"]
# Other devices have the same block, a partial sum, a value that is wrong, or none of these.
Texture = Literal["", "replica", "partial", "wrong"]


@dataclass(frozen=True)
class GridLimits:
    """Maximum rows and columns; a larger grid shows its first ones and its last."""

    rows: int = 16
    columns: int = 16
    detail: Detail = "full"


DEFAULT_LIMITS = GridLimits()


@dataclass(frozen=True)
class Paint:
    """The colors of a cell, the first of which fills it, and its texture."""

    colors: tuple[Color, ...]
    texture: Texture = ""


NEUTRAL = Paint((slate_shade(0, 2),))
WRONG_PAINT = Paint((slate_shade(0, 2),), "wrong")


def mesh_paint(sizes: Sequence[int], steps: Mapping[int, int], texture: Texture = "") -> Paint:
    """Return the paint of a block: a color for each mesh axis along which blocks differ.

    `sizes` are those of the mesh; `steps` has the coordinate along each of these axes, by the
    position of the axis in the mesh. An axis of size 1 distinguishes nothing and has no color.

    >>> [color.name for color in mesh_paint((2, 4), {1: 3, 0: 0}).colors]
    ['a0-0-2', 'a1-3-4']
    """
    colors = [
        axis_shade(axis, step, sizes[axis])
        for axis, step in sorted(steps.items())
        if sizes[axis] > 1
    ]
    return Paint(tuple(colors) or (slate_shade(0, 2),), texture)


@dataclass(frozen=True)
class Cell:
    """One box: its label, its paint, and a longer text for hovering.

    `paint` is None for a cell without a box, such as the dots of a gap.
    """

    lines: tuple[str, ...]
    paint: Paint | None
    hover: str = ""


@dataclass(frozen=True, kw_only=True)
class Arrow:
    """What one cell sends to another: from (row, column) to (row, column)."""

    start: tuple[int, int]
    end: tuple[int, int]
    color: Color


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Rows and columns of cells with a title, a caption, and labels along both sides.

    `row_axis` and `column_axis` say what the rows and the columns are. `is_block` draws the cells
    as parts of one block of a minimum size, `is_code` the lines of cells after the first as code,
    and `is_summary` says that rows or columns are left out.
    """

    title: str
    row_axis: str = ""
    column_axis: str = ""
    caption: str = ""
    row_labels: tuple[str, ...]
    column_labels: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    arrows: tuple[Arrow, ...] = ()
    is_summary: bool = False
    is_block: bool = False
    is_code: bool = False


@dataclass(frozen=True, kw_only=True)
class Block:
    """The visible cells of a three-dimensional array, by their position in depth, row and column.

    `labels` are those along the depth, the rows and the columns; `axes` say what these are.
    """

    title: str
    axes: tuple[str, str, str]
    labels: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    cells: Mapping[tuple[int, int, int], Cell]
    caption: str = ""


@dataclass(frozen=True)
class AxisKey:
    """An entry of the legend: a mesh axis by name, position and size, and what it does.

    `has_shades` shows a shade for each coordinate, otherwise only the hue.
    """

    name: str
    axis: int
    size: int
    role: str = ""
    has_shades: bool = True


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A title, facts as text, grids, and the text alternative for screen readers.

    `block` is drawn instead of the first grid where three dimensions can be shown.
    """

    title: str
    facts: tuple[str, ...]
    grids: tuple[Grid, ...]
    alternative: str
    keys: tuple[AxisKey, ...] = ()
    block: Block | None = None
    is_code_title: bool = field(default=True)


TEXTURE_TEXTS: dict[Texture, str] = {
    "replica": "replica: other devices have the same block",
    "partial": "partial sum",
    "wrong": "wrong",
}


def grid_textures(grids: Sequence[Grid]) -> list[Texture]:
    """Return the textures that cells of the grids have, in the order of their legend."""
    present = {
        cell.paint.texture for grid in grids for row in grid.cells for cell in row if cell.paint
    }
    return [texture for texture in TEXTURE_TEXTS if texture in present]


def visible_positions(n: int, max_positions: int = DEFAULT_LIMITS.rows) -> list[int]:
    """Return the positions to draw out of `n`; -1 stands for those left out.

    >>> visible_positions(4), visible_positions(4096)
    ([0, 1, 2, 3], [0, 1, 2, -1, 4095])
    """
    if n <= max_positions:
        return list(range(n))
    return [*range(min(_N_FIRST, max_positions - 1)), GAP, n - 1]


def gap_cell(row: int, column: int) -> Cell:
    """Return the cell with dots for a position in a left-out row, column, or both."""
    is_corner = row == GAP and column == GAP
    return Cell(("⋱" if is_corner else "⋮" if row == GAP else "⋯",), None)
