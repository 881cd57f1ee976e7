"""The picture: what to draw of a layout, before anybody decides how.

A picture has facts in words and up to two grids: the array cut into its slices, and the mesh with
what each device holds. Terminal, SVG and HTML all draw this one form.
"""

from __future__ import annotations

from dataclasses import dataclass

_N_FIRST = 3
GAP = -1


@dataclass(frozen=True)
class GridLimits:
    """How much may be drawn: more rows or columns than this become the first ones and the last.

    `is_compact` keeps only numbers in the cells.
    """

    rows: int = 16
    columns: int = 16
    is_compact: bool = False


DEFAULT_LIMITS = GridLimits()


@dataclass(frozen=True)
class Cell:
    """One box: its label, the number of the slice that colours it, and a longer text for hovering.

    `shard` is None in the dots that stand for what is left out.
    """

    lines: tuple[str, ...]
    shard: int | None
    hover: str = ""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Rows and columns of cells with a title, a caption, and labels along both sides."""

    title: str
    caption: str
    row_labels: tuple[str, ...]
    column_labels: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    is_summary: bool
    is_array: bool


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A title, facts in words, grids, and the text that stands in for all of it."""

    title: str
    facts: tuple[str, ...]
    grids: tuple[Grid, ...]
    alternative: str


def visible_positions(n: int, most: int = DEFAULT_LIMITS.rows) -> list[int]:
    """Return the positions to draw of `n`; -1 stands for those left out.

    >>> visible_positions(4), visible_positions(4096)
    ([0, 1, 2, 3], [0, 1, 2, -1, 4095])
    """
    return list(range(n)) if n <= most else [*range(min(_N_FIRST, most - 1)), GAP, n - 1]
