"""A `devices` block in the terminal: a table of devices, in color if the terminal has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap

from shardlab.course.devices_block import (
    DeviceRow,
    DevicesBlock,
    DeviceStep,
    HeldBlock,
    layout_words,
    line_label,
    mesh_lines,
)
from shardlab.render.palette import WRONG
from shardlab.render.picture import TEXTURE_TEXTS
from shardlab.render.terminal import TEXTURE_SIGNS, Line, Span, draw_keys, lines_text

_NO_BREAK = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True, kw_only=True)
class _Table:
    """The columns of the table: names of rows at the left, or above the cells if 0 wide."""

    name_width: int
    label_width: int  # of the coordinates along the mesh axes that go down
    cell_width: int
    lines: tuple[tuple[int, ...], ...]

    @property
    def width(self) -> int:
        return self.margin + max(map(len, self.lines)) * (self.cell_width + 3) + 1

    @property
    def full_width(self) -> int:
        """The columns of the text of a full array, across all devices."""
        return self.width - self.margin - 4

    @property
    def margin(self) -> int:
        return self.name_width + self.label_width


def devices_text(block: DevicesBlock, width: int) -> str:
    """Return the picture as plain text.

    >>> from shardlab.course.devices_block import parse_devices_block
    >>> text = "mesh x=2\\na, partial over x: 1 | 2\\n-> psum over x\\nb P(): 3"
    >>> print(devices_text(parse_devices_block(text), 80))
    x=2
                             device 0   device 1
    a  partial sums over x │ 1 Σ      │ 2 Σ      │
                             ↓ psum over x ↓
    b  P()                 │ 3 ╱      │ 3 ╱      │
    ╱ replica: other devices have the same block
    Σ partial sum
    """
    return lines_text(devices_lines(block, width))


def devices_lines(block: DevicesBlock, width: int) -> Iterator[Line]:
    """Yield the lines of the picture; a table that is too wide becomes a list of devices."""
    table = _fitting_table(block, width)
    yield from draw_keys(block.axis_keys, width)
    if table is None:
        for item in block.items:
            yield from _list_item(block, item, width)
    else:
        yield _head_line(block, table)
        for item in block.items:
            if isinstance(item, DeviceStep):
                yield from _step_lines(block, item, " " * (table.margin + 2), width)
            else:
                yield from _row_lines(block, table, item, width)
    for texture in block.textures:
        text = f"{TEXTURE_SIGNS[texture]} {TEXTURE_TEXTS[texture]}"
        yield from ([Span(text=line, is_faint=True)] for line in wrap(text, width))


def _fitting_table(block: DevicesBlock, width: int) -> _Table | None:
    """Return a table with the names at the left, or above the cells, or none that fits."""
    mesh = block.mesh
    lines = mesh_lines(block, mesh.axis_sizes[-1])
    labels = [line_label(block, line[0]) for line in lines]
    cells = [
        len(_cell_text(block, row, device, held))
        for row in block.rows
        if not row.is_full
        for device, cell in enumerate(row.cells)
        for held in cell
    ]
    full_texts = [row.cells[0][0].text for row in block.rows if row.is_full]
    heads = [len(head) for head in _heads(block)]
    names = max(len(_row_name(row)) for row in block.rows) + 1
    for name_width in (names, 0):
        table = _Table(
            name_width=name_width,
            label_width=max(map(len, labels)) + 1 if len(lines) > 1 else 0,
            cell_width=max([*cells, *heads]),
            lines=lines,
        )
        has_room = all(len(text) <= table.full_width for text in full_texts)
        if has_room and table.width <= width:
            return table
    return None


def _heads(block: DevicesBlock) -> list[str]:
    """Return what the columns are: devices, or coordinates along the last mesh axis."""
    mesh = block.mesh
    if len(mesh.axis_names) == 1:
        return [f"device {device}" for device in range(mesh.n_devices)]
    return [f"{mesh.axis_names[-1]}={step}" for step in range(mesh.axis_sizes[-1])]


def _head_line(block: DevicesBlock, table: _Table) -> Line:
    heads = "".join(f"  {head:<{table.cell_width}} " for head in _heads(block))
    return [Span(text=f"{'':<{table.margin}}{heads}".rstrip(), is_faint=True)]


def _row_name(row: DeviceRow) -> str:
    return "  ".join(filter(None, [row.name, *layout_words(row)]))


def _row_lines(block: DevicesBlock, table: _Table, row: DeviceRow, width: int) -> Iterator[Line]:
    name = _row_name(row)
    if not table.name_width:
        yield from ([Span(text=line, is_strong=True)] for line in wrap(name, width))
        name = ""
    # A note stands at the end of the row if there is room, else below it.
    has_room = table.width + 2 + len(row.note) <= width
    for number, line in enumerate(
        _full_lines(block, table, row) or _table_lines(block, table, row)
    ):
        head = Span(text=f"{'' if number else name:<{table.name_width}}", is_strong=True)
        note = f"  {row.note}" if has_room and row.note and number == 0 else ""
        yield [head, *line, Span(text=note, is_faint=True)]
    if not has_room:
        yield from _note_lines(row.note, " " * (table.margin + 2), width)


def _full_lines(block: DevicesBlock, table: _Table, row: DeviceRow) -> list[Line]:
    """Return the line of a full array, across all devices; none for other rows."""
    if not row.is_full:
        return []
    held = row.cells[0][0]
    fill = block.paint(row, 0, held).colors[0]
    text = Span(text=f" {held.text:^{table.full_width}} ", fill=fill)
    return [[Span(text=f"{'':<{table.label_width}}│"), text, Span(text="│")]]


def _table_lines(block: DevicesBlock, table: _Table, row: DeviceRow) -> Iterator[Line]:
    empty: Line = [Span(text=" " * (table.cell_width + 2))]
    for line in table.lines:
        label = line_label(block, line[0]) if table.label_width else ""
        columns = [_cell_spans(block, table, row, device) for device in line]
        for level, cells in enumerate(zip_longest(*columns, fillvalue=empty)):
            text = "" if level else label
            spans = [Span(text=f"{text:<{table.label_width}}", is_faint=True)]
            for cell in cells:
                spans += [Span(text="│"), *cell]
            yield [*spans, Span(text="│")]


def _note_lines(note: str, indent: str, width: int) -> Iterator[Line]:
    for line in wrap(note, max(width - len(indent), 20)):
        yield [Span(text=f"{indent}{line}", is_faint=True)]


def _cell_spans(block: DevicesBlock, table: _Table, row: DeviceRow, device: int) -> list[Line]:
    """Return the lines of a cell, one for each of its blocks."""
    lines = []
    for held in row.cells[device]:
        first, *others = block.paint(row, device, held).colors
        text = f" {_cell_text(block, row, device, held):<{table.cell_width + 1}}"
        if held.is_wrong:
            first, others = WRONG, []
        end = len(text) - len(others)
        bands = [Span(text=" ", fill=color) for color in others]
        lines.append([Span(text=text[:end], fill=first), *bands])
    return lines or [[Span(text=" " * (table.cell_width + 2))]]


def _cell_text(block: DevicesBlock, row: DeviceRow, device: int, held: HeldBlock) -> str:
    """Return the text of a block with the sign of its texture, and room for its other colors."""
    paint = block.paint(row, device, held)
    sign = TEXTURE_SIGNS.get(paint.texture, "")
    return f"{held.text} {sign}".rstrip() + " " * max(len(paint.colors) - 2, 0)


def _step_lines(block: DevicesBlock, step: DeviceStep, indent: str, width: int) -> Iterator[Line]:
    details = ", ".join(filter(None, [block.moves_text(step), step.note]))
    note = f" ({details})" if details else ""
    ink = "cyan" if step.mesh_axes else ""
    ends = ("↓ ", " ↓") if step.mesh_axes else ("↓ ", "")
    for line in wrap(f"{ends[0]}{step}{ends[1]}{note}", max(width - len(indent), 20)):
        yield [Span(text=f"{indent}{line}", ink=ink, is_strong=bool(step.mesh_axes))]


def _list_item(block: DevicesBlock, item: DeviceRow | DeviceStep, width: int) -> Iterator[Line]:
    """Yield an item for a narrow terminal: a line for each device."""
    if isinstance(item, DeviceStep):
        yield from _step_lines(block, item, "  ", width)
        return
    yield from ([Span(text=line, is_strong=True)] for line in wrap(_row_name(item), width))
    if item.is_full:
        text = item.cells[0][0].text
        yield from ([Span(text=line)] for line in wrap(text, width, initial_indent="  "))
    for device, cell in enumerate(() if item.is_full else item.cells):
        # textwrap does not break at a no-break space, so a sign stays beside its text.
        texts = [
            _cell_text(block, item, device, held).rstrip().replace(" ", _NO_BREAK) for held in cell
        ]
        text = f"device {device}: {', '.join(texts) or '-'}"
        for line in wrap(text, width, initial_indent="  ", subsequent_indent="    "):
            yield [Span(text=line.replace(_NO_BREAK, " "))]
    yield from _note_lines(item.note, "  ", width)
