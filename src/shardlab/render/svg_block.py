"""Three-dimensional arrays as SVG: a block in parallel projection with three visible sides."""

from __future__ import annotations

from shardlab.render.palette import FAINT, INK, LINE
from shardlab.render.picture import Block, Cell
from shardlab.render.svg_marks import BAND_HEIGHT, LINE_HEIGHT, SMALL_SIZE, SvgCanvas
from shardlab.render.text_width import text_width, wrap_to_width

Point = tuple[float, float]

_FRONT_WIDTH, _FRONT_HEIGHT = 260.0, 170.0  # pixels: least size of the front
_DEPTH = (0.62, -0.42)  # direction into the picture, per pixel of depth
_MIN_DEPTH = 62.0  # pixels of one cell along the depth
_TITLE_HEIGHT = 24.0


class _Geometry:
    """Where the cells of a block are; the depth goes up and to the right."""

    def __init__(self, block: Block) -> None:
        self.depths, self.rows, self.columns = map(len, block.labels)
        widest = max(
            text_width(line, is_bold=not n)
            for cell in block.cells.values()
            for n, line in enumerate(cell.lines)
        )
        n_lines = max(len(cell.lines) for cell in block.cells.values())
        self.width = max(widest + 16, _FRONT_WIDTH / self.columns)
        self.height = max(LINE_HEIGHT * n_lines + 14, _FRONT_HEIGHT / self.rows)
        self.depth = max(_MIN_DEPTH, 130 / self.depths)
        self.margin = max(text_width(label, SMALL_SIZE) for label in block.labels[1]) + 30
        # The top side begins as far below the title as the depth rises.
        self.rise = -_DEPTH[1] * self.depth * self.depths
        self.top = _TITLE_HEIGHT + LINE_HEIGHT + self.rise

    def point(self, depth: float, row: float, column: float) -> Point:
        """Return the position of a corner, in cells along each dimension."""
        x = self.margin + column * self.width + _DEPTH[0] * self.depth * depth
        y = self.top + row * self.height + _DEPTH[1] * self.depth * depth
        return x, y


def measure_block(block: Block) -> tuple[float, float]:
    """Return width and height in pixels."""
    shape = _Geometry(block)
    right = shape.point(shape.depths, 0, shape.columns)[0]
    labels = max(text_width(label, SMALL_SIZE) for label in block.labels[0]) + 12
    width = max(
        right + labels,
        shape.point(shape.depths / 2, 0, shape.columns)[0] + text_width(block.axes[0]) * 0.5 + 60,
        shape.margin + text_width(block.axes[2]),
        text_width(block.title, 13, is_bold=True),
    )
    caption = len(wrap_to_width(block.caption, width, SMALL_SIZE))
    bottom = shape.point(0, shape.rows, 0)[1]
    return width, bottom + LINE_HEIGHT * (2.6 + caption)


def draw_block(canvas: SvgCanvas, block: Block, x: float, y: float) -> None:
    """Draw the block: right side and top first, the front over them."""
    shape = _Geometry(block)
    canvas.text(x, y + 13, block.title, size=13, is_bold=True)
    last = shape.columns - 1
    for (depth, row, column), cell in block.cells.items():
        if column == last:
            corners = [(0, 0), (1, 0), (1, 1), (0, 1)]
            side = [shape.point(depth + d, row + r, shape.columns) for d, r in corners]
            _draw_side(canvas, cell, _shift(side, x, y), is_labeled=depth > 0 and row > 0)
        if row == 0:
            corners = [(0, 0), (1, 0), (1, 1), (0, 1)]
            side = [shape.point(depth + d, 0, column + c) for d, c in corners]
            _draw_side(canvas, cell, _shift(side, x, y), is_labeled=depth > 0)
    for (depth, row, column), cell in block.cells.items():
        if depth == 0:
            corners = [(0, 0), (0, 1), (1, 1), (1, 0)]
            side = [shape.point(0, row + r, column + c) for r, c in corners]
            _draw_front(canvas, cell, _shift(side, x, y))
    _draw_labels(canvas, block, shape, x, y)


def _shift(points: list[Point], x: float, y: float) -> list[Point]:
    return [(x + px, y + py) for px, py in points]


def _draw_side(canvas: SvgCanvas, cell: Cell, points: list[Point], *, is_labeled: bool) -> None:
    """Draw one face of a cell at the top or at the right, with its first line."""
    if cell.paint is None:
        return
    with canvas.hover(cell.hover):
        canvas.polygon(points, cell.paint.colors[0], LINE)
        canvas.polygon_texture(points, cell.paint.texture)
        x = sum(px for px, _ in points) / 4
        y = sum(py for _, py in points) / 4
        _draw_side_bands(canvas, cell, points)
        if is_labeled:
            canvas.text(x, y + 4, cell.lines[0], anchor="middle", size=SMALL_SIZE, is_bold=True)


def _draw_side_bands(canvas: SvgCanvas, cell: Cell, points: list[Point]) -> None:
    """Draw a band for each further mesh axis along the first edge, next to the front."""
    if cell.paint is None:
        return
    (ax, ay), (bx, by), (cx, cy), (dx, dy) = points
    for n, color in enumerate(cell.paint.colors[1:]):
        near, far = n * 0.08, (n + 1) * 0.08
        corners = [
            (ax + (bx - ax) * near, ay + (by - ay) * near),
            (ax + (bx - ax) * far, ay + (by - ay) * far),
            (dx + (cx - dx) * far, dy + (cy - dy) * far),
            (dx + (cx - dx) * near, dy + (cy - dy) * near),
        ]
        canvas.polygon(corners, color, LINE)


def _draw_front(canvas: SvgCanvas, cell: Cell, points: list[Point]) -> None:
    if cell.paint is None:
        return
    (left, top), _, (right, bottom), _ = points
    with canvas.hover(cell.hover):
        canvas.polygon(points, cell.paint.colors[0], LINE)
        canvas.polygon_texture(points, cell.paint.texture)
        # From below: the last mesh axis is the lowest band, as in a flat cell.
        for n, color in enumerate(reversed(cell.paint.colors[1:])):
            low = bottom - BAND_HEIGHT * n
            high = low - BAND_HEIGHT
            canvas.polygon([(left, high), (right, high), (right, low), (left, low)], color, LINE)
        bands = BAND_HEIGHT * (len(cell.paint.colors) - 1)
        first = (top + bottom - bands - LINE_HEIGHT * (len(cell.lines) - 1)) / 2 + 4
        for n, line in enumerate(cell.lines):
            y = first + LINE_HEIGHT * n
            canvas.text((left + right) / 2, y, line, anchor="middle", is_bold=not n)


def _draw_labels(canvas: SvgCanvas, block: Block, shape: _Geometry, x: float, y: float) -> None:
    """Draw labels along the front's left and lower edges, and along the depth at the right."""
    depth_labels, row_labels, column_labels = block.labels
    for n, label in enumerate(row_labels):
        px, py = shape.point(0, n + 0.5, 0)
        canvas.text(x + px - 7, y + py + 4, label, FAINT, anchor="end", size=SMALL_SIZE)
    for n, label in enumerate(column_labels):
        px, py = shape.point(0, shape.rows, n + 0.5)
        canvas.text(x + px, y + py + 14, label, FAINT, anchor="middle", size=SMALL_SIZE)
    for n, label in enumerate(depth_labels):
        px, py = shape.point(n + 0.5, shape.rows, shape.columns)
        canvas.text(x + px + 7, y + py + 12, label, FAINT, size=SMALL_SIZE)
    _, middle = shape.point(0, shape.rows / 2, 0)
    canvas.text(x + 11, y + middle, block.axes[1], anchor="middle", is_upward=True)
    px, bottom = shape.point(0, shape.rows, shape.columns / 2)
    center = max(x + px, x + shape.margin + text_width(block.axes[2]) / 2)
    canvas.text(center, y + bottom + 32, block.axes[2], INK, anchor="middle")
    px, py = shape.point(shape.depths, 0, 0)
    canvas.text(x + px, y + py - 7, block.axes[0], INK)
    for n, line in enumerate(wrap_to_width(block.caption, measure_block(block)[0], SMALL_SIZE)):
        baseline = y + bottom + 32 + LINE_HEIGHT * (n + 1)
        canvas.text(x, baseline, line, FAINT, size=SMALL_SIZE)
