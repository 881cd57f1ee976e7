"""Pictures as SVG: one self-contained element, with title and description for screen readers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from textwrap import wrap

from shardlab.render.palette import fill_color, label_color
from shardlab.render.picture import Cell, Grid, Picture

MARGIN, _GAP, LINE = 20, 2, 17  # pixels: around the picture, between cells, from line to line
LETTER = 7.3  # pixels: one letter of 12-pixel monospace
_DOTS_WIDTH = 22
_SIDE_BY_SIDE = 1040  # pixels: if the panels together are wider, they are stacked
INK, FAINT, PAPER = "#1A1A1A", "#5A5A5A", "#FFFFFF"
_STYLE = (
    "text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
    ".t{font-weight:bold;font-size:14px}.h{font-weight:bold}"
)


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A grid with its dimensions in pixels."""

    grid: Grid
    margin: float
    widths: tuple[float, ...]
    heights: tuple[float, ...]
    caption: tuple[str, ...]

    @property
    def width(self) -> float:
        lines = (len(line) * LETTER for line in (self.grid.title, *self.caption))
        return max(self.margin + sum(self.widths), *lines)

    @property
    def top(self) -> float:
        """The y position of the first row, below title and column labels."""
        return LINE * (2.4 if any(self.grid.column_labels) else 1.2)

    @property
    def height(self) -> float:
        return self.top + sum(self.heights) + LINE * (len(self.caption) + 0.4)


def picture_svg(picture: Picture) -> str:
    """Return any picture as an SVG element."""
    panels = [_measure_grid(grid) for grid in picture.grids]
    head = LINE * (1.6 + len(picture.facts))
    positions, width, height = _arrange_panels(panels, head)
    # The title is 14 pixels high, other text 12: a letter of it is 1.17 times as wide.
    title_width = round(LETTER * 1.17, 2) * len(picture.title)
    text_width = max(title_width, *(LETTER * len(fact) for fact in picture.facts), 0.0)
    width = max(width, text_width + 2 * MARGIN)
    start = svg_header(picture.title, picture.alternative, width, height)
    parts = [*start, *_draw_heading(picture)]
    for panel, (x, y) in zip(panels, positions, strict=True):
        parts += [f'<g transform="translate({x:g},{y:g})">', *_draw_panel(panel), "</g>"]
    return "\n".join([*parts, "</svg>"])


def _arrange_panels(
    panels: list[Panel], head: float
) -> tuple[list[tuple[float, float]], float, float]:
    """Return the position of each panel, and the total width and height."""
    top = MARGIN + head
    total_width = sum(panel.width for panel in panels) + 2 * MARGIN * len(panels)
    if total_width <= _SIDE_BY_SIDE:
        rights = accumulate((panel.width + 2 * MARGIN for panel in panels), initial=MARGIN)
        positions = [(x, top) for x, _ in zip(rights, panels, strict=False)]
        return positions, total_width, top + max(panel.height for panel in panels) + MARGIN
    bottoms = list(accumulate((panel.height + MARGIN for panel in panels), initial=top))
    positions = [(float(MARGIN), y) for y in bottoms[:-1]]
    return positions, max(panel.width for panel in panels) + 2 * MARGIN, bottoms[-1]


def svg_header(title: str, alternative: str, width: float, height: float) -> Iterator[str]:
    """Yield the start of an SVG element: size, text for screen readers, style, background."""
    title, description = escape(title), escape(alternative)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{description}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}">'
    )
    # <title> and <desc> are read by screen readers, aria-label by those that ignore both.
    yield f"<title>{title}</title>"
    yield f"<desc>{description}</desc>"
    yield f"<style>{_STYLE}</style>"
    yield f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>'


def _draw_heading(picture: Picture) -> Iterator[str]:
    y = MARGIN + LINE * 0.6
    yield svg_text(MARGIN, y, picture.title, INK, kind="t")
    for fact in picture.facts:
        y += LINE
        yield svg_text(MARGIN, y, fact, INK)


def _draw_panel(panel: Panel) -> Iterator[str]:
    grid = panel.grid
    yield svg_text(0, LINE * 0.6, grid.title, INK, kind="h")
    lefts = list(accumulate(panel.widths, initial=panel.margin))
    tops = list(accumulate(panel.heights, initial=panel.top))
    for label, x in zip(grid.column_labels, lefts, strict=False):
        yield svg_text(x + 6, panel.top - 6, label, FAINT)
    for label, y, height in zip(grid.row_labels, tops, panel.heights, strict=False):
        yield svg_text(0, y + height / 2 + 4, label, FAINT)
    for row, y, height in zip(grid.cells, tops, panel.heights, strict=False):
        for cell, x, width in zip(row, lefts, panel.widths, strict=False):
            yield from _draw_cell(cell, x, y, width - _GAP, height - _GAP)
    for n, line in enumerate(panel.caption):
        yield svg_text(0, tops[-1] + LINE * (n + 1), line, FAINT)


def _draw_cell(cell: Cell, x: float, y: float, width: float, height: float) -> Iterator[str]:
    if cell.color_number is None:
        yield svg_text(x + width / 2, y + height / 2 + 4, cell.lines[0], FAINT, middle=True)
        return
    fill = fill_color(cell.color_number)
    # A <title> inside a group is the tooltip of its shapes.
    yield f"<g><title>{escape(cell.hover)}</title>"
    yield (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" '
        f'fill="{fill}" stroke="#000" stroke-opacity=".25"/>'
    )
    first = y + height / 2 - LINE * (len(cell.lines) - 1) / 2 + 4
    for n, line in enumerate(cell.lines):
        yield svg_text(x + width / 2, first + LINE * n, line, label_color(fill), middle=True)
    yield "</g>"


def svg_text(
    x: float, y: float, text: str, color: str, *, kind: str = "", middle: bool = False
) -> str:
    """Return one line of text; `y` is its baseline."""
    if not text:
        return ""
    css_class = f' class="{kind}"' if kind else ""
    anchor = ' text-anchor="middle"' if middle else ""
    return f'<text x="{x:g}" y="{y:g}" fill="{color}"{css_class}{anchor}>{escape(text)}</text>'


def _measure_grid(grid: Grid) -> Panel:
    texts = [text for row in grid.cells for cell in row for text in cell.lines]
    letters = max(map(len, [*texts, *grid.column_labels]))
    n_lines = max(len(cell.lines) for row in grid.cells for cell in row)
    width, height = letters * LETTER + 18, LINE * n_lines + 12.0
    if grid.is_block:  # a block with few cells still gets the size of a block
        width = max(width, 340 / len(grid.column_labels))
        height = max(height, 150 / len(grid.row_labels)) if any(grid.row_labels) else height
    # Left-out rows and columns need no more than the dots.
    widths = tuple(_DOTS_WIDTH if n == "⋯" else width for n in grid.column_labels)
    heights = tuple(_DOTS_WIDTH if n == "⋮" else height for n in grid.row_labels)
    margin = max(map(len, grid.row_labels)) * LETTER + 8 if any(grid.row_labels) else 0.0
    return Panel(
        grid=grid,
        margin=margin,
        widths=widths,
        heights=heights,
        caption=_wrap_caption(grid.caption, margin + sum(widths)),
    )


def _wrap_caption(caption: str, width: float) -> tuple[str, ...]:
    """Wrap a caption to about the width of its grid, first at semicolons, then at spaces."""
    letters = max(44, int(width / LETTER))
    return tuple(line for part in caption.split("; ") for line in wrap(part, letters))
