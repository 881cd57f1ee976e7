"""A `devices` block as SVG, narrow enough for a phone: each row has its name above its cells.

The cells of one row share the width of the frame. A collective is a bar in the hues of its mesh
axes that connects the devices; a step that sends nothing is a text between arrows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardlab.course.devices_block import (
    DeviceRow,
    DevicesBlock,
    DeviceStep,
    HeldBlock,
    layout_words,
    line_label,
    mesh_lines,
)
from shardlab.render.palette import FAINT, INK, LINE, Color, axis_shade
from shardlab.render.picture import Paint
from shardlab.render.svg import draw_keys
from shardlab.render.svg_marks import LINE_HEIGHT, MARGIN, SMALL_SIZE, Box, SvgCanvas
from shardlab.render.text_width import TEXT_SIZE, text_width, wrap_to_width

# The column of a lesson on a screen of 390 pixels: there the picture has its natural size.
FRAME_WIDTH = 356.0
_GAP = 4.0  # pixels between cells
_PADDING = 5.0  # pixels left and right of the text of a cell
_ARROW_LENGTH = 13.0
_BAR_HEIGHT = 21.0
_MOVE_HEIGHT = 36.0  # pixels of the arrows of a ppermute


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """Where the devices are: `lines` of device numbers, and the columns in pixels."""

    lines: tuple[tuple[int, ...], ...]
    heads: tuple[tuple[str, ...], ...]  # above the cells of each line; one entry: above the first
    line_labels: tuple[str, ...]
    left: float
    cell_width: float

    def center(self, column: int) -> float:
        return self.left + (self.cell_width + _GAP) * column + self.cell_width / 2

    @property
    def n_columns(self) -> int:
        return max(map(len, self.lines))

    @property
    def right(self) -> float:
        return self.left + (self.cell_width + _GAP) * self.n_columns - _GAP


def devices_svg(block: DevicesBlock) -> str:
    """Return the picture as an SVG element.

    >>> from shardlab.course.devices_block import parse_devices_block
    >>> devices_svg(parse_devices_block("mesh x=2\\na P('x'): 1 | 2")).count("<g>")
    2
    """
    canvas = SvgCanvas()
    frame = _make_frame(block)
    y = MARGIN
    if len(frame.heads) == 1:
        y = _draw_heads(canvas, frame, 0, y)
    previous: DeviceRow | DeviceStep | None = None
    for item in block.items:
        if isinstance(item, DeviceRow):
            y += 8.0 if isinstance(previous, DeviceRow) else 0.0
            y = _draw_row(canvas, block, frame, item, y)
        else:
            y = _draw_step(canvas, block, frame, item, y)
        previous = item
    y = draw_keys(canvas, block.axis_keys, y + 8, frame.right, block.textures, min_right=0.0)
    canvas.bottom = max(canvas.bottom, y - LINE_HEIGHT * 0.5)
    return canvas.to_svg(f"Devices of mesh {block.mesh}", block.alternative, width=FRAME_WIDTH)


# ---------------------------------------------------------------------------------------- the frame


def _make_frame(block: DevicesBlock) -> _Frame:
    """Arrange the devices: the last mesh axis across, all others down; a long line is folded."""
    names, sizes = block.mesh.axis_names, block.mesh.axis_sizes
    right = FRAME_WIDTH - MARGIN
    n_columns = sizes[-1]
    if len(sizes) == 1:
        n_columns = _fitting_columns(n_columns, right - MARGIN, _longest_word(block))
        lines = mesh_lines(block, n_columns)
        heads = tuple(tuple(f"device {device}" for device in line) for line in lines)
        labels: tuple[str, ...] = ()
        left = MARGIN
    else:
        lines = mesh_lines(block, n_columns)
        heads = (tuple(f"{names[-1]}={step}" for step in range(n_columns)),)
        labels = tuple(line_label(block, line[0]) for line in lines)
        left = MARGIN + max(text_width(label, SMALL_SIZE) for label in labels) + 7
    width = (right - left - _GAP * (n_columns - 1)) / n_columns
    return _Frame(
        lines=lines,
        heads=heads,
        line_labels=labels,
        left=left,
        cell_width=max(width, _longest_word(block) + 2 * _PADDING),
    )


def _fitting_columns(n: int, width: float, word: float) -> int:
    """Return how many of `n` devices share a line, so that the lines are equally long."""
    fitting = max(int((width + _GAP) // (max(word + 2 * _PADDING, 48.0) + _GAP)), 1)
    n_lines = -(-n // fitting)
    return -(-n // n_lines)


def _longest_word(block: DevicesBlock) -> float:
    rows = [row for row in block.rows if not row.is_full]
    texts = [held.text for row in rows for cell in row.cells for held in cell]
    words = [word for text in texts for word in text.split()]
    return max((text_width(word) for word in words), default=0.0)


# ----------------------------------------------------------------------------------------- the rows


def _draw_heads(canvas: SvgCanvas, frame: _Frame, line: int, y: float) -> float:
    for column, head in enumerate(frame.heads[line]):
        x = frame.center(column)
        canvas.text(x, y + 8, head, FAINT, anchor="middle", size=SMALL_SIZE)
    return y + 13


def _draw_row(
    canvas: SvgCanvas, block: DevicesBlock, frame: _Frame, row: DeviceRow, y: float
) -> float:
    y = _draw_name(canvas, frame, row, y)
    if row.is_full:
        width = frame.right - frame.left
        height = _cell_height(block, width, row, 0)
        _draw_cell(canvas, block, row, 0, Box(x=frame.left, y=y, width=width, height=height))
        return y + height + _GAP
    for number, line in enumerate(frame.lines):
        if len(frame.heads) > 1:
            y = _draw_heads(canvas, frame, number, y)
        height = max(_cell_height(block, frame.cell_width, row, device) for device in line)
        if frame.line_labels:
            label, middle = frame.line_labels[number], y + height / 2 + 4
            canvas.text(frame.left - 7, middle, label, FAINT, anchor="end", size=SMALL_SIZE)
        for column, device in enumerate(line):
            x = frame.left + (frame.cell_width + _GAP) * column
            box = Box(x=x, y=y, width=frame.cell_width, height=height)
            _draw_cell(canvas, block, row, device, box)
        y += height + (2 * _GAP if len(frame.heads) > 1 else _GAP)
    return y


def _draw_name(canvas: SvgCanvas, frame: _Frame, row: DeviceRow, y: float) -> float:
    """Draw the name, the spec and the note of a row, wrapped at the frame; return the bottom."""
    code, words = layout_words(row)
    faint = " · ".join(filter(None, [words, row.note]))
    runs = [(row.name, "bold"), (code, "code"), (faint, "faint")]
    x, baseline = MARGIN, y + 13
    for text, style in runs:
        is_bold, is_code = style == "bold", style == "code"
        color: Color = INK if is_bold else FAINT
        # Words of a run that share a line are one text, so that the font spaces them.
        line = ""
        for word in [text] if is_code else text.split():
            extended = f"{line} {word}".strip()
            width = text_width(extended, is_bold=is_bold, is_code=is_code)
            if x + width > frame.right and (line or x > MARGIN):
                canvas.text(x, baseline, line, color, is_bold=is_bold, is_code=is_code)
                x, baseline, extended = MARGIN, baseline + LINE_HEIGHT, word
            line = extended
        canvas.text(x, baseline, line, color, is_bold=is_bold, is_code=is_code)
        x += text_width(line, is_bold=is_bold, is_code=is_code) + (8.0 if line else 0.0)
    return baseline + 6


def _block_lines(width: float, held: HeldBlock) -> list[str]:
    return wrap_to_width(held.text, width - 2 * _PADDING)


def _block_height(block: DevicesBlock, row: DeviceRow, device: int, n_lines: int) -> float:
    bands = max(
        (len(block.paint(row, device, held).colors) - 1 for held in row.cells[device]), default=0
    )
    return 15.0 * n_lines + 11.0 + 7.0 * bands


def _cell_height(block: DevicesBlock, width: float, row: DeviceRow, device: int) -> float:
    cell = row.cells[device]
    n_lines = max((len(_block_lines(width, held)) for held in cell), default=1)
    count = max(len(cell), 1)
    return _block_height(block, row, device, n_lines) * count + 2.0 * (count - 1)


def _draw_cell(
    canvas: SvgCanvas, block: DevicesBlock, row: DeviceRow, device: int, box: Box
) -> None:
    cell = row.cells[device]
    if not cell:  # the device holds nothing
        canvas.box(box, None, stroke=LINE, radius=3, dashes="3 3")
        return
    height = (box.height - 2.0 * (len(cell) - 1)) / len(cell)
    for number, held in enumerate(cell):
        inner = Box(x=box.x, y=box.y + (height + 2.0) * number, width=box.width, height=height)
        paint = block.paint(row, device, held)
        place = "the full array" if row.is_full else f"device {device}"
        with canvas.hover(f"{place}: {row.name}, {held.text}"):
            canvas.paint(inner, paint)
            _draw_text(canvas, inner, paint, _block_lines(box.width, held))


def _draw_text(canvas: SvgCanvas, box: Box, paint: Paint, lines: Sequence[str]) -> None:
    bands = 7.0 * (len(paint.colors) - 1)
    baseline = box.y + (box.height - bands - 15.0 * (len(lines) - 1)) / 2 + 4.5
    for line in lines:
        if paint.texture in ("replica", "partial"):
            width = text_width(line)
            canvas.backdrop(box.middle, baseline, width, TEXT_SIZE, paint.colors[0])
        canvas.text(box.middle, baseline, line, anchor="middle")
        baseline += 15.0


# ---------------------------------------------------------------------------------------- the steps


def _draw_step(
    canvas: SvgCanvas,
    block: DevicesBlock,
    frame: _Frame,
    step: DeviceStep,
    y: float,
) -> float:
    """Draw a step below a row; return the y position of the next row."""
    centers = [frame.center(column) for column in range(frame.n_columns)]
    if not step.mesh_axes:
        text = f"{step} ({step.note})" if step.note else str(step)
        for line in wrap_to_width(text, frame.right - MARGIN):
            canvas.text((frame.left + frame.right) / 2, y + 12, line, FAINT, anchor="middle")
            y += 15
        _draw_arrows(canvas, centers, y + 3)
        return y + 5 + _ARROW_LENGTH
    moves = block.find_moves(step) if len(frame.lines) == 1 else ()
    if not moves:
        for x in centers:
            canvas.line(((x, y), (x, y + 7)), INK, width=1.3)
    top = y + (2.0 if moves else 7.0)
    y = _draw_bar(canvas, block, frame, step, top)
    if not moves:
        _draw_arrows(canvas, centers, y)
        return y + 2 + _ARROW_LENGTH
    for move in moves:
        # A ribbon in the color of the block below a thin arrow: pale shades stay visible on paper.
        points = ((centers[move.source], y + 2), (centers[move.target], y + _MOVE_HEIGHT))
        canvas.line(points, move.color, width=5)
        canvas.arrow(points, INK, width=1.1)
    return y + _MOVE_HEIGHT + 2


def _draw_arrows(canvas: SvgCanvas, centers: Sequence[float], y: float) -> None:
    for x in centers:
        canvas.arrow(((x, y), (x, y + _ARROW_LENGTH)), INK, width=1.3)


def _draw_bar(
    canvas: SvgCanvas, block: DevicesBlock, frame: _Frame, step: DeviceStep, y: float
) -> float:
    """Draw a collective as a bar in the hues of its mesh axes; return its bottom."""
    axes = [block.mesh.axis_names.index(name) for name in step.mesh_axes]
    paint = Paint(tuple(axis_shade(axis, 0, 1) for axis in axes))
    text = f"{step}, {step.note}" if step.note else str(step)
    lines = wrap_to_width(text, frame.right - frame.left - 12)
    height = _BAR_HEIGHT + 15.0 * (len(lines) - 1) + 7.0 * (len(axes) - 1)
    box = Box(x=frame.left, y=y, width=frame.right - frame.left, height=height)
    with canvas.hover(text):
        canvas.paint(box, paint)
        for n, line in enumerate(lines):
            canvas.text(box.middle, y + 15 + 15 * n, line, anchor="middle", is_bold=True)
    return y + height
