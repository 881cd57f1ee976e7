"""Pictures of a layout: the shards of the array and the devices of the mesh, as text, SVG, HTML."""

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
    gap_cell,
    visible_positions,
)
from shardlab.render.svg import picture_svg
from shardlab.render.terminal import DEFAULT_WIDTH, grid_width, picture_rich, picture_text
from shardlab.sharding.layout import Layout

if TYPE_CHECKING:
    from rich.text import Text

# Lines in the cell of a device, from its id and the coordinates of the shard it holds.
DeviceLines = Callable[[int, tuple[int, ...]], tuple[str, ...]]


def layout_picture(layout: Layout, limits: GridLimits = DEFAULT_LIMITS) -> Picture:
    """Return the picture of a layout: shards with their devices, and devices with their shards.

    >>> from shardlab.sharding.layout import layout
    >>> picture = layout_picture(layout((8, 6), "model", "data=2,model=2"))
    >>> [[cell.lines for cell in row] for row in picture.grids[0].cells]
    [[('#0', 'devices 0, 2')], [('#1', 'devices 1, 3')]]
    """
    facts = _layout_facts(layout)
    device_lines = _shard_lines(layout, limits.is_compact)
    return Picture(
        title=_layout_title(layout),
        facts=facts,
        grids=(_shard_grid(layout, limits), _device_grid(layout, device_lines, limits)),
        alternative=_text_alternative(layout, facts),
    )


def device_values_picture(
    layout: Layout,
    texts: Mapping[int, str],
    *,
    title: str = "",
    caption: str = "",
    limits: GridLimits = DEFAULT_LIMITS,
) -> Picture:
    """Return a picture of the mesh in which each device shows its entry of `texts`.

    >>> from shardlab.sharding.layout import layout
    >>> picture = device_values_picture(layout((4,), "x", "x=2"), {0: "[0. 1.]", 1: "[2. 3.]"})
    >>> [cell.lines for cell in picture.grids[0].cells[0]]
    [('device 0', '[0. 1.]'), ('device 1', '[2. 3.]')]

    Devices are colored by the shard they hold in `layout`; a device without a text shows none.
    """

    def device_lines(device: int, _coordinates: tuple[int, ...]) -> tuple[str, ...]:
        return (f"device {device}", *texts.get(device, "").splitlines())

    grid = _device_grid(layout, device_lines, limits, caption=caption)
    sentences = [f"device {device}: {' '.join(text.split())}" for device, text in texts.items()]
    return Picture(
        title=title or _layout_title(layout),
        facts=(),
        grids=(grid,),
        alternative="; ".join(sentences[:64]) + ("; …" if len(sentences) > 64 else ""),
    )


def visible_dimensions(layout: Layout) -> tuple[int, ...]:
    """Return the one or two dimensions to draw: those with most shards, then the last ones.

    >>> from shardlab.sharding.layout import layout
    >>> visible_dimensions(layout((2, 8, 3, 6), "None,x,None,y", "x=2,y=3"))
    (1, 3)
    """
    # Ties go to later dimensions, which are contiguous in memory.
    by_count = sorted(range(len(layout.shape)), key=lambda dim: (-layout.shard_counts[dim], -dim))
    return tuple(sorted(by_count[:2]))


def _shard_grid(layout: Layout, limits: GridLimits) -> Grid:
    dims = visible_dimensions(layout)
    # One dimension is drawn across, like a vector.
    row_dim, column_dim = dims if len(dims) == 2 else (None, dims[0] if dims else None)
    rows = _visible_shards(layout, row_dim, limits.rows)
    columns = _visible_shards(layout, column_dim, limits.columns)

    def draw_cell(row: int, column: int) -> Cell:
        if GAP in (row, column):
            return gap_cell(row, column)
        # Dimensions that are not drawn show their first shard.
        coordinates = [0] * len(layout.shape)
        for dim, shard in ((row_dim, row), (column_dim, column)):
            if dim is not None:
                coordinates[dim] = shard
        return _shard_cell(layout, tuple(coordinates), limits.is_compact)

    return Grid(
        title=f"Shards: {layout.n_shards:,}",
        caption=_shard_caption(layout, dims, limits.is_compact) + _gap_caption(rows, columns),
        row_labels=tuple(_shard_label(layout, row_dim, shard, "⋮") for shard in rows),
        column_labels=tuple(_shard_label(layout, column_dim, shard, "⋯") for shard in columns),
        cells=tuple(tuple(draw_cell(row, column) for column in columns) for row in rows),
        is_summary=GAP in (*rows, *columns),
        is_block=True,
    )


def _shard_cell(layout: Layout, coordinates: tuple[int, ...], is_compact: bool) -> Cell:
    number = _shard_number(layout, coordinates)
    index = slice_text(layout.shard_index(coordinates), layout.shape)
    devices = devices_text(layout.shard_devices(coordinates), layout.n_replicas)
    # `devices_text` would show a range only up to 64 devices.
    if layout.n_shards == 1 and layout.n_devices > 4:
        devices = f"all {layout.n_devices:,} devices"
    lines: tuple[str, ...] = (f"#{number}", devices)
    if is_compact:
        ids = devices_text(layout.shard_devices(coordinates), layout.n_replicas, short=True)
        lines = (f"#{number}: {ids}",)
    return Cell(lines, number, f"shard #{number} {index} on {devices}")


def _device_grid(
    layout: Layout, device_lines: DeviceLines, limits: GridLimits, *, caption: str = ""
) -> Grid:
    """Draw the last mesh axis along the columns and all others together down the rows."""
    mesh = layout.mesh
    names, sizes = mesh.axis_names, mesh.axis_sizes
    n_columns = sizes[-1] if sizes else 1
    rows = visible_positions(prod(sizes[:-1]), limits.rows)
    columns = visible_positions(n_columns, limits.columns)

    def draw_cell(row: int, column: int) -> Cell:
        if GAP in (row, column):
            return gap_cell(row, column)
        position = row * n_columns + column
        device = position if mesh.device_ids is None else mesh.device_ids[position]
        coordinates = layout.shard_coordinates(device)
        index = slice_text(layout.shard_index(coordinates), layout.shape)
        hover = f"device {device} ({_coordinate_text(layout, device)}) holds {index}"
        return Cell(device_lines(device, coordinates), _shard_number(layout, coordinates), hover)

    return Grid(
        title=f"Devices: {layout.n_devices:,}",
        caption=(caption or _device_caption(layout, limits.is_compact))
        + _gap_caption(rows, columns),
        row_labels=tuple(_axis_label(names[:-1], sizes[:-1], row, "⋮") for row in rows),
        column_labels=tuple(_axis_label(names[-1:], sizes[-1:], column, "⋯") for column in columns),
        cells=tuple(tuple(draw_cell(row, column) for column in columns) for row in rows),
        is_summary=GAP in (*rows, *columns),
        is_block=False,
    )


def _shard_lines(layout: Layout, is_compact: bool) -> DeviceLines:
    def device_lines(device: int, coordinates: tuple[int, ...]) -> tuple[str, ...]:
        number = _shard_number(layout, coordinates)
        if is_compact:
            return (f"{device}: #{number}",)
        index = slice_text(layout.shard_index(coordinates), layout.shape)
        return (f"device {device}", f"#{number} {index}")

    return device_lines


def _shard_number(layout: Layout, coordinates: Sequence[int]) -> int:
    """Return the position of a shard in array order: it numbers and colors the shard."""
    number = 0
    for shard, n_shards in zip(coordinates, layout.shard_counts, strict=True):
        number = number * n_shards + shard
    return number


def _visible_shards(layout: Layout, dim: int | None, max_shards: int) -> list[int]:
    return [0] if dim is None else visible_positions(layout.shard_counts[dim], max_shards)


def _shard_label(layout: Layout, dim: int | None, shard: int, gap: str) -> str:
    if dim is None:
        return ""
    if shard == GAP:
        return gap
    size = layout.shard_shape[dim]
    return f"{shard * size}:{(shard + 1) * size}"


def _axis_label(names: Sequence[str], sizes: Sequence[int], position: int, gap: str) -> str:
    """Return `data=1,stage=0` for a position along these mesh axes."""
    if position == GAP:
        return gap
    steps = []
    for name, size in zip(reversed(names), reversed(sizes), strict=True):
        position, step = divmod(position, size)
        steps.append(f"{name}={step}")
    return ",".join(reversed(steps))


def _coordinate_text(layout: Layout, device: int) -> str:
    steps = zip(layout.mesh.axis_names, layout.mesh.coordinate(device), strict=True)
    return ", ".join(f"{name}={step}" for name, step in steps)


def _array_text(layout: Layout) -> str:
    return f"{layout.dtype.name}{shape_text(layout.shape)}"


def _layout_title(layout: Layout) -> str:
    return f"{_array_text(layout)}  {layout.spec}  on mesh {layout.mesh}"


def _layout_facts(layout: Layout) -> tuple[str, ...]:
    size = f"{shape_text(layout.shard_shape)}, {bytes_text(layout.bytes_per_device)}"
    devices = count_text(layout.n_replicas, "device")
    devices = f"replicated on {devices}" if layout.n_replicas > 1 else f"on {devices}"
    if layout.n_shards == 1:
        shards = f"1 shard, the full array, {devices}"
    else:
        shards = f"{layout.n_shards:,} shards, each {devices}"
    total = f"total {bytes_text(layout.total_bytes)} on all devices"
    array = f"full array {bytes_text(layout.array_bytes)}"
    return (f"each device holds {size}", shards, f"{total}; {array}")


def _shard_caption(layout: Layout, dims: tuple[int, ...], is_compact: bool) -> str:
    if not dims:
        return "a scalar: one element, not sharded"
    sides = ("down", "across")[-len(dims) :]
    parts = [
        f"{side}: {_dimension_text(layout, dim)}" for side, dim in zip(sides, dims, strict=True)
    ]
    for dim in range(len(layout.shape)):
        if dim in dims:
            continue
        text = _dimension_text(layout, dim)
        if layout.shard_counts[dim] > 1:
            first = range_text(slice(0, layout.shard_shape[dim]), layout.shape[dim])
            parts.append(f"{text}: only its first shard, {first}, is drawn")
        else:
            parts.append(f"{text}, not drawn")
    return "; ".join([*parts, *(["in each box, shard: devices"] if is_compact else [])])


def _dimension_text(layout: Layout, dim: int) -> str:
    names = layout.spec.axes[dim] if dim < len(layout.spec) else ()
    if not names:
        return f"dimension {dim} (unsharded)"
    n_shards = count_text(layout.shard_counts[dim], "shard")
    return f"dimension {dim} ({n_shards} over {' × '.join(names)})"


def _gap_caption(rows: Sequence[int], columns: Sequence[int]) -> str:
    return "; dots stand for those in between" if GAP in (*rows, *columns) else ""


def _device_caption(layout: Layout, is_compact: bool) -> str:
    names = layout.mesh.axis_names
    if not names:
        return "a mesh without axes: one device"
    down = f"down: {' × '.join(names[:-1])}; " if names[:-1] else ""
    unused = [name for name in names if name not in layout.spec.mesh_axes]
    replicated = f"; replicated over {', '.join(unused)}" if unused else ""
    boxes = "; in each box, device: shard" if is_compact else ""
    return f"{down}across: {names[-1]}{replicated}{boxes}"


def _text_alternative(layout: Layout, facts: Sequence[str]) -> str:
    """Return the picture as one sentence for screen readers: the first four devices in full."""
    sharded = [
        f"dimension {dim} has {n_shards:,} shards over {' × '.join(layout.spec.axes[dim])}"
        for dim, n_shards in enumerate(layout.shard_counts)
        if n_shards > 1
    ]
    # Four devices show the pattern; a screen reader should not read out a thousand.
    devices = [*range(min(4, layout.n_devices))]
    if layout.mesh.device_ids is not None:
        devices = list(layout.mesh.device_ids[:4])
    contents = [
        f"device {device} holds {slice_text(layout.index(device), layout.shape)}"
        for device in devices
    ]
    rest = ["and so on"] if layout.n_devices > len(devices) else []
    return f"{_layout_title(layout)}: {'; '.join([*sharded, *facts, *contents, *rest])}."


def layout_svg(layout: Layout) -> str:
    """Return a layout's picture as an SVG element.

    >>> from shardlab.sharding.layout import layout
    >>> svg = layout_svg(layout((8, 6), "x", "x=2"))
    >>> svg.startswith('<svg xmlns="http://www.w3.org/2000/svg" role="img"')
    True
    """
    full = layout_picture(layout)
    compact = layout_picture(layout, GridLimits(is_compact=True))
    # A page has no width limit, but more than 8 full cells in a row no longer fit on a screen.
    grids = (
        narrow if max(len(wide.column_labels), len(wide.row_labels)) > 8 else wide
        for wide, narrow in zip(full.grids, compact.grids, strict=True)
    )
    return picture_svg(replace(full, grids=tuple(grids)))


def layout_html(layout: Layout) -> str:
    """Return a layout's picture as an HTML fragment.

    >>> from shardlab.sharding.layout import layout
    >>> layout_html(layout((8, 6), "x", "x=2")).startswith('<figure')
    True
    """
    return f'<figure style="margin:0;overflow-x:auto">{layout_svg(layout)}</figure>'


# Tried in order until the picture is narrow enough; eight rows, so that it fits on one screen.
_TERMINAL_LIMITS = (
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
    2 shards, each on 1 device
    total 32 bytes on all devices; full array 32 bytes
    <BLANKLINE>
    Shards: 2
      0:4        4:8
    ┌──────────┬──────────┐
    │ #0       │ #1       │
    │ device 0 │ device 1 │
    └──────────┴──────────┘
    across: dimension 0 (2 shards over x)
    <BLANKLINE>
    Devices: 2
      x=0        x=1
    ┌──────────┬──────────┐
    │ device 0 │ device 1 │
    │ #0 [0:4] │ #1 [4:8] │
    └──────────┴──────────┘
    across: x
    """
    return picture_text(fitting_picture(layout, width), width)


def layout_rich(layout: Layout, width: int = DEFAULT_WIDTH) -> Text:
    """Return a layout's picture for rich to print in color."""
    return picture_rich(fitting_picture(layout, width), width)


def fitting_picture(layout: Layout, width: int) -> Picture:
    """Return the most detailed picture that fits the width, or the narrowest."""
    picture = layout_picture(layout, _TERMINAL_LIMITS[0])
    for limits in _TERMINAL_LIMITS[1:]:
        if all(grid_width(grid) <= width for grid in picture.grids):
            break
        # Each grid is reduced on its own: a small array stays detailed next to a large mesh.
        narrower = layout_picture(layout, limits).grids
        pairs = zip(picture.grids, narrower, strict=True)
        grids = tuple(old if grid_width(old) <= width else new for old, new in pairs)
        picture = replace(picture, grids=grids)
    return picture


def device_text(layout: Layout, device: int) -> str:
    """Return what one device holds, and which devices hold the same shard.

    >>> from shardlab.sharding.layout import layout
    >>> print(device_text(layout((8, 6), "model", "data=2,model=2"), 3))
    device 3 (data=1, model=1) holds [4:8, :] of float32[8, 6]: shape [4, 6], 96 bytes
    this shard is replicated on devices 1, 3
    """
    coordinates = layout.shard_coordinates(device)
    index = slice_text(layout.shard_index(coordinates), layout.shape)
    size = f"shape {shape_text(layout.shard_shape)}, {bytes_text(layout.bytes_per_device)}"
    first = f"device {device} ({_coordinate_text(layout, device)}) holds {index}"
    devices = devices_text(layout.shard_devices(coordinates), layout.n_replicas)
    is_replicated = layout.n_replicas > 1
    second = f"this shard is replicated on {devices}" if is_replicated else "no replicas"
    return f"{first} of {_array_text(layout)}: {size}\n{second}"
