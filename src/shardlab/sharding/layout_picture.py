"""Pictures of a layout: the array by owner and the mesh by content, as text, SVG and HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from shardlab._text.indices import devices_text, range_text, shape_text, slice_text
from shardlab._text.units import bytes_text, count_text
from shardlab.render.picture import (
    DEFAULT_LIMITS,
    GAP,
    Cell,
    Grid,
    GridLimits,
    Picture,
    visible_positions,
)
from shardlab.render.svg import picture_svg
from shardlab.render.terminal import DEFAULT_WIDTH, grid_width, picture_rich, picture_text
from shardlab.sharding.layout import Layout

if TYPE_CHECKING:
    from rich.text import Text


def layout_picture(layout: Layout, room: GridLimits = DEFAULT_LIMITS) -> Picture:
    """Return the picture of a layout: the array by owner, and the mesh by what it holds.

    >>> from shardlab.sharding.layout import layout
    >>> picture = layout_picture(layout((8, 6), "model", "data=2,model=2"))
    >>> [[cell.lines for cell in row] for row in picture.grids[0].cells]
    [[('#0', 'devices 0, 2')], [('#1', 'devices 1, 3')]]
    """
    title, facts = _title(layout), _facts(layout)
    lines = _held_lines(layout, room.is_compact)
    grids = (_array_grid(layout, room), _mesh_grid(layout, lines, room))
    return Picture(title=title, facts=facts, grids=grids, alternative=_alternative(layout, facts))


def holdings(
    layout: Layout,
    texts: Mapping[int, str],
    *,
    title: str = "",
    caption: str = "",
    room: GridLimits = DEFAULT_LIMITS,
) -> Picture:
    """Return a picture of the mesh in which each device shows the text given for its id.

    >>> from shardlab.sharding.layout import layout
    >>> picture = holdings(layout((4,), "x", "x=2"), {0: "[0. 1.]", 1: "[2. 3.]"})
    >>> [cell.lines for cell in picture.grids[0].cells[0]]
    [('device 0', '[0. 1.]'), ('device 1', '[2. 3.]')]

    Devices are coloured by the slice they hold in `layout`; a device without a text shows none.
    """

    def lines(device: int, _part: tuple[int, ...]) -> tuple[str, ...]:
        return (f"device {device}", *texts.get(device, "").splitlines())

    grid = _mesh_grid(layout, lines, room, caption=caption)
    said = [f"device {device}: {' '.join(text.split())}" for device, text in texts.items()]
    alternative = "; ".join(said[:64]) + ("; …" if len(said) > 64 else "")
    return Picture(title=title or _title(layout), facts=(), grids=(grid,), alternative=alternative)


def drawn_axes(layout: Layout) -> tuple[int, ...]:
    """Return the one or two array axes to draw: those that are cut, most parts first.

    >>> from shardlab.sharding.layout import layout
    >>> drawn_axes(layout((2, 8, 3, 6), "None,x,None,y", "x=2,y=3"))
    (1, 3)
    """
    by_cut = sorted(range(len(layout.shape)), key=lambda at: (-layout.shard_counts[at], -at))
    cut = [at for at in by_cut if layout.shard_counts[at] > 1]
    return tuple(sorted((cut + [at for at in by_cut if at not in cut])[:2]))


def _array_grid(layout: Layout, room: GridLimits) -> Grid:
    axes = drawn_axes(layout)
    rows, columns = axes if len(axes) == 2 else (None, axes[0] if axes else None)
    row_parts = _parts(layout, rows, room.rows)
    column_parts = _parts(layout, columns, room.columns)

    def cell(row: int, column: int) -> Cell:
        if GAP in (row, column):
            return _dots(row, column)
        part = [0] * len(layout.shape)
        for axis, at in ((rows, row), (columns, column)):
            if axis is not None:
                part[axis] = at
        return _array_cell(layout, tuple(part), room.is_compact)

    return Grid(
        title=f"The array: {count_text(layout.n_shards, 'slice')}",
        caption=_array_caption(layout, axes, room.is_compact) + _left_out(row_parts, column_parts),
        row_labels=tuple(_part_label(layout, rows, at, "⋮") for at in row_parts),
        column_labels=tuple(_part_label(layout, columns, at, "⋯") for at in column_parts),
        cells=tuple(tuple(cell(row, column) for column in column_parts) for row in row_parts),
        is_summary=GAP in (*row_parts, *column_parts),
        is_array=True,
    )


def _array_cell(layout: Layout, part: tuple[int, ...], compact: bool) -> Cell:
    number = _shard_number(layout, part)
    held = slice_text(layout.index_of_part(part), layout.shape)
    owners = devices_text(layout.holders(part), layout.n_replicas)
    if layout.n_shards == 1 and layout.n_devices > 4:
        owners = f"all {layout.n_devices:,} devices"
    lines: tuple[str, ...] = (f"#{number}", owners)
    if compact:
        short = devices_text(layout.holders(part), layout.n_replicas, short=True)
        lines = (f"#{number}: {short}",)
    return Cell(lines, number, f"slice #{number} {held} on {owners}")


def _mesh_grid(
    layout: Layout,
    lines: Callable[[int, tuple[int, ...]], tuple[str, ...]],
    room: GridLimits,
    *,
    caption: str = "",
) -> Grid:
    """Draw the last mesh axis along the columns and all others together down the rows."""
    mesh = layout.mesh
    names, sizes = mesh.axis_names, mesh.axis_sizes
    n_columns = sizes[-1] if sizes else 1
    rows, columns = (
        visible_positions(prod(sizes[:-1]), room.rows),
        visible_positions(n_columns, room.columns),
    )

    def cell(row: int, column: int) -> Cell:
        if GAP in (row, column):
            return _dots(row, column)
        position = row * n_columns + column
        device = position if mesh.device_ids is None else mesh.device_ids[position]
        part = layout.part(device)
        held = slice_text(layout.index_of_part(part), layout.shape)
        hover = f"device {device} {_coordinate_text(layout, device)} holds {held}"
        return Cell(lines(device, part), _shard_number(layout, part), hover)

    return Grid(
        title=f"The mesh: {count_text(layout.n_devices, 'device')}",
        caption=(caption or _mesh_caption(layout, room.is_compact)) + _left_out(rows, columns),
        row_labels=tuple(_place_label(names[:-1], sizes[:-1], at, "⋮") for at in rows),
        column_labels=tuple(_place_label(names[-1:], sizes[-1:], at, "⋯") for at in columns),
        cells=tuple(tuple(cell(row, column) for column in columns) for row in rows),
        is_summary=GAP in (*rows, *columns),
        is_array=False,
    )


def _held_lines(layout: Layout, compact: bool) -> Callable[[int, tuple[int, ...]], tuple[str, ...]]:
    def lines(device: int, part: tuple[int, ...]) -> tuple[str, ...]:
        number = _shard_number(layout, part)
        if compact:
            return (f"{device}: #{number}",)
        return (
            f"device {device}",
            f"#{number} {slice_text(layout.index_of_part(part), layout.shape)}",
        )

    return lines


def _shard_number(layout: Layout, part: Sequence[int]) -> int:
    number = 0
    for at, n_parts in zip(part, layout.shard_counts, strict=True):
        number = number * n_parts + at
    return number


def _parts(layout: Layout, axis: int | None, most: int) -> list[int]:
    return [0] if axis is None else visible_positions(layout.shard_counts[axis], most)


def _dots(row: int, column: int) -> Cell:
    both = row == GAP and column == GAP
    return Cell(("⋱" if both else "⋮" if row == GAP else "⋯",), None)


def _part_label(layout: Layout, axis: int | None, at: int, gap: str) -> str:
    if axis is None:
        return ""
    if at == GAP:
        return gap
    size = layout.shard_shape[axis]
    return f"{at * size}:{(at + 1) * size}"


def _place_label(names: Sequence[str], sizes: Sequence[int], at: int, gap: str) -> str:
    """Return `data=1,stage=0` for the position `at` among the places along these mesh axes."""
    if at == GAP:
        return gap
    steps = []
    for name, size in zip(reversed(names), reversed(sizes), strict=True):
        at, step = divmod(at, size)
        steps.append(f"{name}={step}")
    return ",".join(reversed(steps))


def _coordinate_text(layout: Layout, device: int) -> str:
    steps = zip(layout.mesh.axis_names, layout.mesh.coordinate(device), strict=True)
    return f"({', '.join(f'{name}={at}' for name, at in steps)})"


def _title(layout: Layout) -> str:
    array = f"{layout.dtype.name}{shape_text(layout.shape)}"
    return f"{array}  {layout.spec}  on mesh {layout.mesh}"


def _facts(layout: Layout) -> tuple[str, ...]:
    held = f"{shape_text(layout.shard_shape)}, {bytes_text(layout.bytes_per_device)}"
    owners = count_text(layout.n_replicas, "device")
    if layout.n_shards == 1:
        spread = f"the whole array on {owners}"
    else:
        spread = f"{layout.n_shards:,} slices, each on {owners}"
    total = (
        f"{bytes_text(layout.array_bytes)} once, {bytes_text(layout.total_bytes)} on all devices"
    )
    return (f"each device holds {held}", spread, total)


def _array_caption(layout: Layout, axes: tuple[int, ...], is_compact: bool) -> str:
    if not axes:
        return "a scalar: one element, nothing to cut"
    sides = ("down", "across")[-len(axes) :]
    words = "; ".join(
        f"{side}: array axis {at}{_cut_by(layout, at)}"
        for side, at in zip(sides, axes, strict=True)
    )
    for at in range(len(layout.shape)):
        if at in axes:
            continue
        if layout.shard_counts[at] > 1:
            first = range_text(slice(0, layout.shard_shape[at]), layout.shape[at])
            words += f"; array axis {at}{_cut_by(layout, at)} at its first part, {first}"
        else:
            words += f"; array axis {at} whole, not drawn"
    return words + ("; in each box, slice: devices" if is_compact else "")


def _left_out(rows: Sequence[int], columns: Sequence[int]) -> str:
    return "; dots stand for all between" if GAP in (*rows, *columns) else ""


def _cut_by(layout: Layout, axis: int) -> str:
    names = layout.spec.axes[axis] if axis < len(layout.spec) else ()
    if not names:
        return " (whole)"
    return f" (cut in {layout.shard_counts[axis]:,} by {' × '.join(names)})"


def _mesh_caption(layout: Layout, is_compact: bool) -> str:
    names = layout.mesh.axis_names
    if not names:
        return "a mesh without axes: one device"
    down = f"down: {' × '.join(names[:-1])}; " if names[:-1] else ""
    unused = [name for name in names if name not in layout.spec.mesh_axes]
    copies = f"; copies along {', '.join(unused)}" if unused else ""
    boxes = "; in each box, device: slice" if is_compact else ""
    return f"{down}across: {names[-1]}{copies}{boxes}"


def _alternative(layout: Layout, facts: Sequence[str]) -> str:
    cut = [
        f"array axis {at} is cut in {n:,} by {' × '.join(layout.spec.axes[at])}"
        for at, n in enumerate(layout.shard_counts)
        if n > 1
    ]
    devices = [*range(min(4, layout.n_devices))]
    if layout.mesh.device_ids is not None:
        devices = list(layout.mesh.device_ids[:4])
    held = [f"device {d} holds {slice_text(layout.index(d), layout.shape)}" for d in devices]
    more = ["and so on"] if layout.n_devices > len(held) else []
    return f"{_title(layout)}: {'; '.join([*cut, *facts, *held, *more])}."


def layout_svg(layout: Layout) -> str:
    """Return a layout's picture as an SVG element.

    >>> from shardlab.sharding.layout import layout
    >>> svg = layout_svg(layout((8, 6), "x", "x=2"))
    >>> svg.startswith('<svg xmlns="http://www.w3.org/2000/svg" role="img"')
    True
    """
    full, compact = (
        layout_picture(layout, room) for room in (GridLimits(), GridLimits(is_compact=True))
    )
    grids = [
        narrow if max(len(wide.column_labels), len(wide.row_labels)) > 8 else wide
        for wide, narrow in zip(full.grids, compact.grids, strict=True)
    ]
    return picture_svg(
        Picture(
            title=full.title, facts=full.facts, grids=tuple(grids), alternative=full.alternative
        )
    )


def layout_html(layout: Layout) -> str:
    """Return a layout's picture as an HTML fragment.

    >>> from shardlab.sharding.layout import layout
    >>> layout_html(layout((8, 6), "x", "x=2")).startswith('<figure')
    True
    """
    return f'<figure style="margin:0;overflow-x:auto">{layout_svg(layout)}</figure>'


# Tried in turn until one is narrow enough: a few rows always, so that a picture fits a screen.
_ROOMS = (
    GridLimits(rows=8, columns=16),
    GridLimits(rows=8, columns=16, is_compact=True),
    GridLimits(rows=8, columns=4),
    GridLimits(rows=8, columns=4, is_compact=True),
    GridLimits(rows=8, columns=2, is_compact=True),
)


def layout_text(layout: Layout, width: int = DEFAULT_WIDTH) -> str:
    """Return a layout's picture as plain text.

    >>> from shardlab.sharding.layout import layout
    >>> print(layout_text(layout((8,), "x", "x=2")))
    float32[8]  P('x')  on mesh x=2
    each device holds [4], 16 bytes
    2 slices, each on 1 device
    32 bytes once, 32 bytes on all devices
    <BLANKLINE>
    The array: 2 slices
      0:4        4:8
    ┌──────────┬──────────┐
    │ #0       │ #1       │
    │ device 0 │ device 1 │
    └──────────┴──────────┘
    across: array axis 0 (cut in 2 by x)
    <BLANKLINE>
    The mesh: 2 devices
      x=0        x=1
    ┌──────────┬──────────┐
    │ device 0 │ device 1 │
    │ #0 [0:4] │ #1 [4:8] │
    └──────────┴──────────┘
    across: x
    """
    return picture_text(fitting_picture(layout, width), width)


def layout_rich(layout: Layout, width: int = DEFAULT_WIDTH) -> Text:
    """Return a layout's picture for rich to print in colour."""
    return picture_rich(fitting_picture(layout, width), width)


def fitting_picture(layout: Layout, width: int) -> Picture:
    """Return the fullest picture that fits the width, or the narrowest there is."""
    picture = layout_picture(layout, _ROOMS[0])
    for room in _ROOMS[1:]:
        if all(grid_width(grid) <= width for grid in picture.grids):
            break
        narrower = layout_picture(layout, room).grids
        pairs = zip(picture.grids, narrower, strict=True)
        grids = tuple(old if grid_width(old) <= width else new for old, new in pairs)
        picture = replace(picture, grids=grids)
    return picture


def device_text(layout: Layout, device: int) -> str:
    """Return what one device holds, and who else holds it.

    >>> from shardlab.sharding.layout import layout
    >>> print(device_text(layout((8, 6), "model", "data=2,model=2"), 3))
    device 3 (data=1, model=1) holds [4:8, :] of float32[8, 6]: shape [4, 6], 96 bytes
    the same slice is on devices 1, 3
    """
    mesh = layout.mesh
    part = layout.part(device)
    steps = zip(mesh.axis_names, mesh.coordinate(device), strict=True)
    place = ", ".join(f"{name}={at}" for name, at in steps)
    held = slice_text(layout.index_of_part(part), layout.shape)
    array = f"{layout.dtype.name}{shape_text(layout.shape)}"
    size = f"shape {shape_text(layout.shard_shape)}, {bytes_text(layout.bytes_per_device)}"
    owners = devices_text(layout.holders(part), layout.n_replicas)
    return f"device {device} ({place}) holds {held} of {array}: {size}\n" + (
        f"the same slice is on {owners}" if layout.n_replicas > 1 else "no other device holds it"
    )
