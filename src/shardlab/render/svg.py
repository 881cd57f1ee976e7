"""Pictures as SVG: one self-contained element, with title and description for screen readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from shardlab.render.palette import FAINT, INK, LINE, Color, axis_shade, slate_shade
from shardlab.render.picture import (
    TEXTURE_TEXTS,
    AxisKey,
    Cell,
    Grid,
    Paint,
    Picture,
    Texture,
    grid_textures,
)
from shardlab.render.svg_block import draw_block, measure_block
from shardlab.render.svg_marks import (
    BAND_HEIGHT,
    LINE_HEIGHT,
    MARGIN,
    SMALL_SIZE,
    Box,
    SvgCanvas,
    draw_title,
    flow_entries,
)
from shardlab.render.text_width import text_width, wrap_to_width

_GAP = 3.0  # pixels between cells
_ARROW_GAP = 30.0  # pixels between rows that arrows connect
_DOTS_WIDTH = 22.0
PANEL_GAP = 36.0  # pixels between panels
_SIDE_BY_SIDE = 1180.0  # pixels: if the panels together are wider, they are stacked
_TITLE_HEIGHT = 24.0
_AXIS_HEIGHT = 19.0  # pixels of the line that says what the columns are
_MAX_SWATCHES = 8  # of an axis in the legend; a longer one shows its first ones and its last


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A grid with its dimensions in pixels."""

    grid: Grid
    margin: float  # left of the cells, for the labels of rows
    widths: tuple[float, ...]
    heights: tuple[float, ...]
    row_gap: float
    caption: tuple[str, ...]
    row_axis: tuple[str, ...]
    text_size: float

    @property
    def width(self) -> float:
        sizes = [
            text_width(self.grid.title, 13, is_bold=True),
            *(text_width(line, SMALL_SIZE) for line in self.caption),
            self.margin + text_width(self.grid.column_axis),
        ]
        return max(self.margin + sum(self.widths), *sizes)

    @property
    def top(self) -> float:
        """The y position of the first row, below title, axis and column labels."""
        labels = LINE_HEIGHT if any(self.grid.column_labels) else 4.0
        return _TITLE_HEIGHT + (_AXIS_HEIGHT if self.grid.column_axis else 0.0) + labels

    @property
    def height(self) -> float:
        rows = sum(self.heights) + self.row_gap * (len(self.heights) - 1)
        rows = max(rows, self._row_axis_length)
        return self.top + rows + LINE_HEIGHT * len(self.caption) + 2

    @property
    def _row_axis_length(self) -> float:
        return max((text_width(line) for line in self.row_axis), default=0.0)


def picture_svg(picture: Picture, max_width: float = _SIDE_BY_SIDE) -> str:
    """Return any picture as an SVG element; its panels are stacked if they are wider together."""
    canvas = SvgCanvas()
    top = draw_title(canvas, picture.title, picture.facts, is_code=picture.is_code_title)
    grids = picture.grids[1:] if picture.block is not None else picture.grids
    panels = [measure_grid(grid) for grid in grids]
    sizes = [(panel.width, panel.height) for panel in panels]
    if picture.block is not None:
        sizes.insert(0, measure_block(picture.block))
    positions, right = arrange_panels(sizes, max_width)
    right = max(right, canvas.right)
    top = draw_legend(canvas, picture, top, right) + 10
    if picture.block is not None:
        x, y = positions.pop(0)
        draw_block(canvas, picture.block, x, y + top)
    for panel, (x, y) in zip(panels, positions, strict=True):
        draw_panel(canvas, panel, x, y + top)
    return canvas.to_svg(picture.title, picture.alternative)


def arrange_panels(
    sizes: Sequence[tuple[float, float]], max_width: float = _SIDE_BY_SIDE
) -> tuple[list[tuple[float, float]], float]:
    """Return the position of each panel, in a row or stacked, and the right end of all."""
    total_width = sum(width for width, _ in sizes) + PANEL_GAP * (len(sizes) - 1)
    if total_width + 2 * MARGIN <= max_width:
        lefts = accumulate((width + PANEL_GAP for width, _ in sizes), initial=MARGIN)
        return [(x, 0.0) for x, _ in zip(lefts, sizes, strict=False)], MARGIN + total_width
    tops = accumulate((height + PANEL_GAP * 0.7 for _, height in sizes), initial=0.0)
    positions = [(MARGIN, y) for y, _ in zip(tops, sizes, strict=False)]
    return positions, MARGIN + max(width for width, _ in sizes)


def draw_legend(canvas: SvgCanvas, picture: Picture, y: float, right: float) -> float:
    """Draw what hues and textures of a picture mean; return the y position below."""
    return draw_keys(canvas, picture.keys, y, right, grid_textures(picture.grids))


def draw_keys(
    canvas: SvgCanvas,
    keys: Sequence[AxisKey],
    y: float,
    right: float,
    textures: Sequence[Texture] = (),
    *,
    min_right: float = 420.0,
) -> float:
    """Draw what hues and textures mean; return the y position below."""
    widths = [_key_width(key) for key in keys]
    widths += [text_width(TEXTURE_TEXTS[texture]) + 46 for texture in textures]
    if not widths:
        return y
    places = list(flow_entries(widths, MARGIN, max(right, min_right)))
    for key, (x, line) in zip(keys, places, strict=False):
        _draw_key(canvas, key, x, y + 4 + LINE_HEIGHT * 1.25 * line)
    for texture, (x, line) in zip(textures, places[len(keys) :], strict=True):
        top = y + 4 + LINE_HEIGHT * 1.25 * line
        box = Box(x=x, y=top, width=18, height=13)
        canvas.paint(box, Paint((slate_shade(0, 2),), texture), radius=2)
        canvas.text(x + 24, top + 11, TEXTURE_TEXTS[texture], FAINT)
    return y + 4 + LINE_HEIGHT * 1.25 * (places[-1][1] + 1)


def _key_texts(key: AxisKey) -> tuple[str, str]:
    return f"{key.name}={key.size:,}", key.role


def _key_swatches(key: AxisKey) -> list[Color | None]:
    if not key.has_shades:
        return [axis_shade(key.axis, 0, 1)]
    if key.size <= _MAX_SWATCHES:
        return [axis_shade(key.axis, step, key.size) for step in range(key.size)]
    first = [axis_shade(key.axis, step, key.size) for step in range(3)]
    return [*first, None, axis_shade(key.axis, key.size - 1, key.size)]


def _key_width(key: AxisKey) -> float:
    name, role = _key_texts(key)
    swatches = 14.0 * len(_key_swatches(key))
    return swatches + text_width(name, is_code=True) + text_width(role) + 38


def _draw_key(canvas: SvgCanvas, key: AxisKey, x: float, y: float) -> None:
    name, role = _key_texts(key)
    for color in _key_swatches(key):
        if color is None:
            canvas.text(x + 7, y + 11, "⋯", FAINT, anchor="middle")
        else:
            canvas.box(Box(x=x, y=y, width=13, height=13), color, stroke=LINE, radius=2)
        x += 14
    canvas.text(x + 6, y + 11, name, is_code=True)
    canvas.text(x + 12 + text_width(name, is_code=True), y + 11, role, FAINT)


def draw_panel(canvas: SvgCanvas, panel: Panel, x: float, y: float) -> None:
    """Draw a grid with its labels."""
    grid = panel.grid
    canvas.text(x, y + 13, grid.title, size=13, is_bold=True)
    lefts = list(accumulate(panel.widths, initial=x + panel.margin))
    steps = (height + panel.row_gap for height in panel.heights)
    tops = list(accumulate(steps, initial=y + panel.top))
    bottom = tops[-1] - panel.row_gap
    _draw_axes(canvas, panel, x, y, bottom)
    _draw_column_labels(canvas, panel, lefts, y + panel.top - 5)
    for label, top, height in zip(grid.row_labels, tops, panel.heights, strict=False):
        baseline = top + (height - _GAP) / 2 + 4
        right = x + panel.margin - 7
        canvas.text(right, baseline, label, FAINT, anchor="end", size=SMALL_SIZE)
    for row, top, height in zip(grid.cells, tops, panel.heights, strict=False):
        for cell, left, width in zip(row, lefts, panel.widths, strict=False):
            box = Box(x=left, y=top, width=width - _GAP, height=height - _GAP)
            _draw_cell(canvas, cell, box, panel)
    _draw_arrows(canvas, panel, lefts, tops)
    bottom = max(bottom, y + panel.height - LINE_HEIGHT * len(panel.caption) - 2)
    for n, line in enumerate(panel.caption):
        canvas.text(x, bottom + LINE_HEIGHT * (n + 0.8), line, FAINT, size=SMALL_SIZE)


def _draw_column_labels(
    canvas: SvgCanvas, panel: Panel, lefts: Sequence[float], baseline: float
) -> None:
    """Draw the labels of columns, without those that would overlap the one before."""
    end = 0.0
    for label, left, width in zip(panel.grid.column_labels, lefts, panel.widths, strict=False):
        center = left + (width - _GAP) / 2
        half = text_width(label, SMALL_SIZE) / 2
        if center - half >= end:
            canvas.text(center, baseline, label, FAINT, anchor="middle", size=SMALL_SIZE)
            end = center + half + 5


def _draw_axes(canvas: SvgCanvas, panel: Panel, x: float, y: float, bottom: float) -> None:
    """Draw what the columns are above them, and what the rows are along them."""
    grid = panel.grid
    left = x + panel.margin
    if grid.column_axis:
        center = left + (sum(panel.widths) - _GAP) / 2
        half = text_width(grid.column_axis) / 2
        center = max(center, left + half)
        canvas.text(center, y + _TITLE_HEIGHT + 12, grid.column_axis, anchor="middle")
    middle = (y + panel.top + bottom - _GAP) / 2
    # Longer than the rows: it starts at their top and reaches below them.
    half = max((text_width(line) for line in panel.row_axis), default=0.0) / 2
    middle = max(middle, y + panel.top + half)
    for n, line in enumerate(panel.row_axis):
        canvas.text(x + 11 + n * 15, middle, line, anchor="middle", is_upward=True)


def _draw_cell(canvas: SvgCanvas, cell: Cell, box: Box, panel: Panel) -> None:
    if cell.paint is None:
        baseline = box.y + box.height / 2 + 4
        canvas.text(box.middle, baseline, cell.lines[0], FAINT, anchor="middle")
        return
    with canvas.hover(cell.hover):
        canvas.paint(box, cell.paint)
        bands = BAND_HEIGHT * (len(cell.paint.colors) - 1)
        line_height = panel.text_size + 5
        first = box.y + (box.height - bands - line_height * (len(cell.lines) - 1)) / 2 + 4
        for n, line in enumerate(cell.lines):
            baseline = first + line_height * n
            if cell.paint.texture in ("replica", "partial"):
                width = _cell_text_width(line, n, cell, panel.grid, panel.text_size)
                canvas.backdrop(box.middle, baseline, width, panel.text_size, cell.paint.colors[0])
            canvas.text(
                box.middle,
                baseline,
                line,
                anchor="middle",
                size=panel.text_size,
                is_bold=n == 0 and len(cell.lines) > 1,
                is_code=panel.grid.is_code and n > 0,
            )


def _draw_arrows(
    canvas: SvgCanvas, panel: Panel, lefts: Sequence[float], tops: Sequence[float]
) -> None:
    for arrow in panel.grid.arrows:
        (row, column), (end_row, end_column) = arrow.start, arrow.end
        x0 = lefts[column] + (panel.widths[column] - _GAP) / 2
        x1 = lefts[end_column] + (panel.widths[end_column] - _GAP) / 2
        # A ribbon in the color of the chunk below a thin arrow: pale shades stay visible on paper.
        y0, y1 = tops[row] + panel.heights[row] - _GAP + 2, tops[end_row] - 2
        canvas.line(((x0, y0), (x1, y1)), arrow.color, width=5)
        canvas.arrow(((x0, y0), (x1, y1)), INK, width=1.1)


def _cell_text_width(line: str, n: int, cell: Cell, grid: Grid, size: float) -> float:
    is_code = grid.is_code and n > 0
    return text_width(line, size, is_bold=n == 0 and len(cell.lines) > 1, is_code=is_code)


def measure_grid(grid: Grid) -> Panel:
    """Return the dimensions of a grid: cells are as large as the largest text needs."""
    text_size = 11.0 if max(len(grid.column_labels), len(grid.row_labels)) > 8 else 12.0
    texts = [
        _cell_text_width(line, n, cell, grid, text_size)
        for row in grid.cells
        for cell in row
        for n, line in enumerate(cell.lines)
    ]
    cells = [cell for row in grid.cells for cell in row]
    n_lines = max(len(cell.lines) for cell in cells)
    n_bands = max((len(cell.paint.colors) - 1 for cell in cells if cell.paint), default=0)
    # Of many columns only some are labeled, so labels do not widen them.
    is_dense = len(grid.column_labels) > 8
    if not is_dense:
        texts += [text_width(label, SMALL_SIZE) - 8 for label in grid.column_labels]
    width = max(texts) + (8.0 if is_dense else 16.0) + _GAP
    height = (text_size + 5) * n_lines + (7.0 if is_dense else 12.0) + BAND_HEIGHT * n_bands
    if grid.is_block:  # a block with few cells still gets the size of a block
        width = max(width, 340 / len(grid.column_labels))
        height = max(height, 150 / len(grid.row_labels)) if any(grid.row_labels) else height
    # Left-out rows and columns need no more than the dots.
    widths = tuple(_DOTS_WIDTH if n == "⋯" else width for n in grid.column_labels)
    heights = tuple(_DOTS_WIDTH if n == "⋮" else height for n in grid.row_labels)
    labels = max((text_width(label, SMALL_SIZE) for label in grid.row_labels), default=0.0)
    margin = labels + 10 if any(grid.row_labels) else 0.0
    row_gap = _ARROW_GAP if grid.arrows else 0.0
    length = max(sum(heights) + row_gap * (len(heights) - 1), 80.0)
    row_axis = tuple(wrap_to_width(grid.row_axis, length)) if grid.row_axis else ()
    margin += 15.0 * len(row_axis) + (4.0 if row_axis else 0.0)
    caption = wrap_to_width(grid.caption, max(380.0, margin + sum(widths)), SMALL_SIZE)
    return Panel(
        grid=grid,
        margin=margin,
        widths=widths,
        heights=heights,
        row_gap=row_gap,
        caption=tuple(caption),
        row_axis=row_axis,
        text_size=text_size,
    )
