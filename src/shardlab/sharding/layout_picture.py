"""Pictures of a layout: the shards of the array and the devices of the mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from operator import le

from shardlab._text.indices import devices_text, range_text, shape_text, slice_text
from shardlab._text.units import bytes_text, count_text
from shardlab.render.picture import (
    DEFAULT_LIMITS,
    GAP,
    AxisKey,
    Block,
    Cell,
    Detail,
    Grid,
    GridLimits,
    Paint,
    Picture,
    Texture,
    gap_cell,
    mesh_paint,
    visible_positions,
)
from shardlab.sharding.layout import Layout

# Lines in the cell of a device, from its id and the coordinates of the shard it holds.
DeviceLines = Callable[[int, tuple[int, ...]], tuple[str, ...]]
# From positions in a grid, each GAP or a number, to the cell there.
CellAt = Callable[[int, int], Cell]

_MAX_BLOCK = (6, 8, 8)  # shards along depth, rows and columns of a drawn block


def layout_picture(layout: Layout, limits: GridLimits = DEFAULT_LIMITS) -> Picture:
    """Return the picture of a layout: shards with their devices, and devices with their shards.

    >>> from shardlab.sharding.layout import layout
    >>> picture = layout_picture(layout((8, 6), "model", "data=2,model=2"))
    >>> [[cell.lines for cell in row] for row in picture.grids[0].cells]
    [[('#0', 'devices 0, 2')], [('#1', 'devices 1, 3')]]
    """
    facts = _layout_facts(layout)
    device_lines = _shard_lines(layout, limits.detail)
    return Picture(
        title=_layout_title(layout),
        facts=facts,
        grids=(_shard_grid(layout, limits), _device_grid(layout, device_lines, limits)),
        alternative=_text_alternative(layout, facts),
        keys=axis_keys(layout),
        block=_shard_block(layout),
    )


def axis_keys(layout: Layout) -> tuple[AxisKey, ...]:
    """Return the legend of hues: what each mesh axis does to the array."""
    mesh = layout.mesh
    return tuple(
        AxisKey(name, axis, size, _axis_role(layout, name))
        for axis, (name, size) in enumerate(mesh.shape.items())
        if size > 1
    )


def shard_paint(layout: Layout, coordinates: Sequence[int]) -> Paint:
    """Return the paint of a shard: a color for each mesh axis that shards the array.

    >>> from shardlab.sharding.layout import layout
    >>> paint = shard_paint(layout((8, 6), "(x,y)", "y=2,x=4"), (5, 0))
    >>> [color.name for color in paint.colors], paint.texture
    (['a0-1-2', 'a1-2-4'], '')
    """
    sizes = layout.mesh.shape
    positions = {name: axis for axis, name in enumerate(sizes)}
    steps = {}
    for shard, names in zip(coordinates, layout.spec.axes, strict=False):
        for name in reversed(names):  # the last mesh axis of a dimension is the minor one
            shard, steps[positions[name]] = divmod(shard, sizes[name])
    texture: Texture = "replica" if layout.n_replicas > 1 else ""
    if any(sizes[name] > 1 for name in layout.spec.unreduced):
        texture = "partial"
    return mesh_paint(layout.mesh.axis_sizes, steps, texture)


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

    grid = replace(_device_grid(layout, device_lines, limits), caption=caption)
    sentences = [f"device {device}: {' '.join(text.split())}" for device, text in texts.items()]
    return Picture(
        title=title or _layout_title(layout),
        facts=(),
        grids=(grid,),
        alternative="; ".join(sentences[:64]) + ("; …" if len(sentences) > 64 else ""),
        keys=axis_keys(layout),
        is_code_title=not title,
    )


def visible_dimensions(layout: Layout, n_dims: int = 2) -> tuple[int, ...]:
    """Return the dimensions to draw: those with most shards, then the last ones.

    >>> from shardlab.sharding.layout import layout
    >>> visible_dimensions(layout((2, 8, 3, 6), "None,x,None,y", "x=2,y=3"))
    (1, 3)
    """
    # Ties go to later dimensions, which are contiguous in memory.
    by_count = sorted(range(len(layout.shape)), key=lambda dim: (-layout.shard_counts[dim], -dim))
    return tuple(sorted(by_count[:n_dims]))


def _shard_grid(layout: Layout, limits: GridLimits) -> Grid:
    dims = visible_dimensions(layout)
    # One dimension is drawn across, like a vector.
    row_dim, column_dim = dims if len(dims) == 2 else (None, dims[0] if dims else None)
    rows = _visible_shards(layout, row_dim, limits.rows)
    columns = _visible_shards(layout, column_dim, limits.columns)

    def cell_at(row: int, column: int) -> Cell:
        if GAP in (row, column):
            return gap_cell(row, column)
        return _shard_cell(layout, {row_dim: row, column_dim: column}, limits.detail)

    notes = [*_hidden_dimensions(layout, dims), *_detail_note(limits.detail, "shard: devices")]
    if not dims:
        notes.insert(0, "a scalar: one element, not sharded")
    grid = Grid(
        title=f"Shards: {layout.n_shards:,}",
        row_axis="" if row_dim is None else _dimension_text(layout, row_dim),
        column_axis="" if column_dim is None else _dimension_text(layout, column_dim),
        caption="; ".join([*notes, *_gap_note(rows, columns)]),
        row_labels=tuple(_shard_label(layout, row_dim, shard, "⋮") for shard in rows),
        column_labels=tuple(_shard_label(layout, column_dim, shard, "⋯") for shard in columns),
        cells=_grid_cells(rows, columns, cell_at),
        is_summary=GAP in (*rows, *columns),
        is_block=True,
    )
    n_columns = 1 if column_dim is None else layout.shard_counts[column_dim]
    if rows == [0] and n_columns > limits.columns and limits.detail == "number":
        return _fold_row(grid, n_columns, limits, "#", lambda shard: cell_at(0, shard))
    return grid


def _fold_row(
    grid: Grid, n: int, limits: GridLimits, prefix: str, cell_at: Callable[[int], Cell]
) -> Grid:
    """Return a grid whose single long row continues in the next rows, if that shows all of it."""
    size = limits.columns
    if n > size * limits.rows:
        return grid
    blank = Cell(("",), None)
    cells = [
        tuple(cell_at(start + i) if start + i < n else blank for i in range(size))
        for start in range(0, n, size)
    ]
    notes = [note for note in grid.caption.split("; ") if not note.startswith("dots")]
    return replace(
        grid,
        row_labels=tuple(f"{prefix}{start}" for start in range(0, n, size)),
        column_labels=tuple(f"+{i}" for i in range(size)),
        cells=tuple(cells),
        caption="; ".join([*notes, f"each row continues the one above it, {size} at a time"]),
        row_axis="",
        is_summary=False,
        is_block=False,
    )


def _grid_cells(
    rows: Sequence[int], columns: Sequence[int], cell_at: CellAt
) -> tuple[tuple[Cell, ...], ...]:
    return tuple(tuple(cell_at(row, column) for column in columns) for row in rows)


def _shard_block(layout: Layout) -> Block | None:
    """Return the shards of an array of three or more dimensions as a block, if they are few."""
    dims = visible_dimensions(layout, 3)
    counts = [layout.shard_counts[dim] for dim in dims]
    is_small = all(map(le, counts, _MAX_BLOCK))
    if len(dims) < 3 or not is_small:
        return None
    # Only the front, the top and the right side are seen, farthest first so that nearer ones cover.
    positions = product(*(range(n) for n in counts))
    visible = [
        (depth, row, column)
        for depth, row, column in sorted(positions, reverse=True)
        if depth == 0 or row == 0 or column == counts[2] - 1
    ]
    axes = [_dimension_text(layout, dim) for dim in dims]
    labels = [
        tuple(_shard_label(layout, dim, shard, "") for shard in range(n))
        for dim, n in zip(dims, counts, strict=True)
    ]
    return Block(
        title=f"Shards: {layout.n_shards:,}",
        axes=(axes[0], axes[1], axes[2]),
        labels=(labels[0], labels[1], labels[2]),
        cells={
            position: _shard_cell(layout, dict(zip(dims, position, strict=True)), "full")
            for position in visible
        },
        caption="; ".join(_hidden_dimensions(layout, dims)),
    )


def _shard_cell(layout: Layout, shards: Mapping[int | None, int], detail: Detail) -> Cell:
    """Return the cell of a shard, from its position along each drawn dimension."""
    # Dimensions that are not drawn show their first shard.
    coordinates = tuple(shards.get(dim, 0) for dim in range(len(layout.shape)))
    number = _shard_number(layout, coordinates)
    index = slice_text(layout.shard_index(coordinates), layout.shape)
    devices = devices_text(layout.shard_devices(coordinates), layout.n_replicas)
    # `devices_text` would show a range only up to 64 devices.
    if layout.n_shards == 1 and layout.n_devices > 4:
        devices = f"all {layout.n_devices:,} devices"
    lines: tuple[str, ...] = (f"#{number}", devices)
    if detail == "compact":
        ids = devices_text(layout.shard_devices(coordinates), layout.n_replicas, short=True)
        lines = (f"#{number}: {ids}",)
    elif detail == "number":
        lines = (f"{number}",)
    return Cell(lines, shard_paint(layout, coordinates), f"shard #{number} {index} on {devices}")


def _device_grid(layout: Layout, device_lines: DeviceLines, limits: GridLimits) -> Grid:
    """Draw the last mesh axis along the columns and all others together down the rows."""
    mesh = layout.mesh
    names, sizes = mesh.axis_names, mesh.axis_sizes
    n_columns = sizes[-1] if sizes else 1
    rows = visible_positions(prod(sizes[:-1]), limits.rows)
    columns = visible_positions(n_columns, limits.columns)

    def cell_at(row: int, column: int) -> Cell:
        if GAP in (row, column):
            return gap_cell(row, column)
        position = row * n_columns + column
        device = position if mesh.device_ids is None else mesh.device_ids[position]
        coordinates = layout.shard_coordinates(device)
        index = slice_text(layout.shard_index(coordinates), layout.shape)
        hover = f"device {device} ({coordinate_text(layout, device)}) holds {index}"
        return Cell(device_lines(device, coordinates), shard_paint(layout, coordinates), hover)

    notes = [] if names else ["a mesh without axes: one device"]
    notes += [*_detail_note(limits.detail, "device: shard"), *_gap_note(rows, columns)]
    grid = Grid(
        title=f"Devices: {layout.n_devices:,}",
        row_axis=" × ".join(names[:-1]),
        column_axis=names[-1] if names else "",
        caption="; ".join(notes),
        row_labels=tuple(_axis_label(names[:-1], sizes[:-1], row, "⋮") for row in rows),
        column_labels=tuple(_axis_label(names[-1:], sizes[-1:], column, "⋯") for column in columns),
        cells=_grid_cells(rows, columns, cell_at),
        is_summary=GAP in (*rows, *columns),
        is_code=True,
    )
    if rows == [0] and n_columns > limits.columns and limits.detail == "number":
        return _fold_row(grid, n_columns, limits, "", lambda column: cell_at(0, column))
    return grid


def _shard_lines(layout: Layout, detail: Detail) -> DeviceLines:
    def device_lines(device: int, coordinates: tuple[int, ...]) -> tuple[str, ...]:
        number = _shard_number(layout, coordinates)
        if detail == "number":
            return (f"{device}",)
        if detail == "compact":
            return (f"{device}: #{number}",)
        index = slice_text(layout.shard_index(coordinates), layout.shape)
        return (f"device {device}", f"#{number} {index}")

    return device_lines


def _shard_number(layout: Layout, coordinates: Sequence[int]) -> int:
    """Return the position of a shard in array order."""
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


def _axis_role(layout: Layout, name: str) -> str:
    """Return what a mesh axis does to the array."""
    for dim, names in enumerate(layout.spec.axes):
        if name in names:
            return f"shards dim {dim}"
    if layout.mesh.shape[name] == 1:
        return ""
    return "partial sums" if name in layout.spec.unreduced else "replicas"


def coordinate_text(layout: Layout, device: int) -> str:
    """Return `data=1, model=0` for a device."""
    steps = zip(layout.mesh.axis_names, layout.mesh.coordinate(device), strict=True)
    return ", ".join(f"{name}={step}" for name, step in steps)


def array_text(layout: Layout) -> str:
    """Return dtype and shape, such as `float32[8, 6]`."""
    return f"{layout.dtype.name}{shape_text(layout.shape)}"


def _layout_title(layout: Layout) -> str:
    return f"{array_text(layout)}  {layout.spec}  on mesh {layout.mesh}"


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


def _hidden_dimensions(layout: Layout, dims: tuple[int, ...]) -> list[str]:
    """Return a note for each dimension that is not drawn."""
    notes = []
    for dim in range(len(layout.shape)):
        if dim in dims:
            continue
        text = _dimension_text(layout, dim)
        if layout.shard_counts[dim] > 1:
            first = range_text(slice(0, layout.shard_shape[dim]), layout.shape[dim])
            notes.append(f"{text}: only its first shard, {first}, is drawn")
        else:
            notes.append(f"{text}, not drawn")
    return notes


def _dimension_text(layout: Layout, dim: int) -> str:
    """Return what is along a dimension: its size and the mesh axes that shard it."""
    names = layout.spec.axes[dim] if dim < len(layout.spec) else ()
    if not names:
        return f"dim {dim}: {layout.shape[dim]}, unsharded"
    n_shards = count_text(layout.shard_counts[dim], "shard")
    return f"dim {dim}: {layout.shape[dim]}, {n_shards} over {' × '.join(names)}"


def _detail_note(detail: Detail, contents: str) -> list[str]:
    if detail == "full":
        return []
    if detail == "compact":
        return [f"in each box, {contents}"]
    return [f"in each box, the number of the {contents.split(':')[0]}"]


def _gap_note(rows: Sequence[int], columns: Sequence[int]) -> list[str]:
    return ["dots stand for those in between"] if GAP in (*rows, *columns) else []


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
