"""The picture: a title, facts and grids of colored cells, independent of the output format.

Terminal, SVG and HTML renderers all draw this one form.
"""

from __future__ import annotations

from dataclasses import dataclass

_N_FIRST = 3  # rows or columns before the gap of an abridged grid
GAP = -1  # stands for the rows or columns that are left out


@dataclass(frozen=True)
class GridLimits:
    """Maximum rows and columns; a larger grid shows its first ones and its last.

    `is_compact` reduces the cells to numbers.
    """

    rows: int = 16
    columns: int = 16
    is_compact: bool = False


DEFAULT_LIMITS = GridLimits()


@dataclass(frozen=True)
class Cell:
    """One box: its label, its color number, and a longer text for hovering.

    `color_number` is None for a cell without a fill, such as the dots of a gap.
    """

    lines: tuple[str, ...]
    color_number: int | None
    hover: str = ""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Rows and columns of cells with a title, a caption, and labels along both sides.

    `is_block` draws the cells as parts of one block of a minimum size, `is_summary` says that rows
    or columns are left out.
    """

    title: str
    caption: str
    row_labels: tuple[str, ...]
    column_labels: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    is_summary: bool
    is_block: bool


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A title, facts as text, grids, and the text alternative for screen readers."""

    title: str
    facts: tuple[str, ...]
    grids: tuple[Grid, ...]
    alternative: str


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
