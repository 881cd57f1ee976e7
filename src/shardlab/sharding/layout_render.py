"""Layouts rendered: as text that fits the terminal, as SVG, as HTML, and one device in words."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shardlab._text.indices import devices_text, shape_text, slice_text
from shardlab._text.units import bytes_text
from shardlab.render.picture import GridLimits, Picture
from shardlab.render.svg import measure_grid, picture_svg
from shardlab.render.terminal import DEFAULT_WIDTH, grid_width, picture_rich, picture_text
from shardlab.sharding.layout import Layout
from shardlab.sharding.layout_picture import array_text, coordinate_text, layout_picture

if TYPE_CHECKING:
    from rich.text import Text


def layout_svg(layout: Layout) -> str:
    """Return a layout's picture as an SVG element.

    >>> from shardlab.sharding.layout import layout
    >>> svg = layout_svg(layout((8, 6), "x", "x=2"))
    >>> svg.startswith('<svg xmlns="http://www.w3.org/2000/svg" class="shardlab-picture"')
    True
    """
    return picture_svg(page_picture(layout))


# From most to least detail; a page has room for 32 numbers in a row.
_PAGE_LIMITS = (
    GridLimits(rows=8, columns=8),
    GridLimits(rows=16, columns=16, detail="compact"),
    GridLimits(rows=32, columns=32, detail="number"),
)
_PAGE_WIDTH = 1000.0  # pixels


def page_picture(layout: Layout, max_width: float = _PAGE_WIDTH) -> Picture:
    """Return the picture for SVG: each grid in the most detail that is complete and fits."""
    pictures = [layout_picture(layout, limits) for limits in _PAGE_LIMITS]
    # A grid that is complete in no detail is abridged, in full detail.
    grids = []
    for versions in zip(*(picture.grids for picture in pictures), strict=True):
        complete = [grid for grid in versions if not grid.is_summary] or [versions[0]]
        fitting = (grid for grid in complete if measure_grid(grid).width <= max_width)
        grids.append(next(fitting, complete[-1]))
    return replace(pictures[0], grids=tuple(grids))


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
    GridLimits(rows=8, columns=16, detail="compact"),
    GridLimits(rows=8, columns=4),
    GridLimits(rows=8, columns=4, detail="compact"),
    GridLimits(rows=8, columns=2, detail="compact"),
)


def layout_text(layout: Layout, width: int = DEFAULT_WIDTH) -> str:
    """Return a layout's picture as plain text.

    >>> from shardlab.sharding.layout import layout
    >>> print(layout_text(layout((8,), "x", "x=2")))
    float32[8]  P('x')  on mesh x=2
    each device holds [4], 16 bytes
    2 shards, each on 1 device
    total 32 bytes on all devices; full array 32 bytes
    x=2 shards dim 0
    <BLANKLINE>
    Shards: 2
    → dim 0: 8, 2 shards over x
      0:4        4:8
    ┌──────────┬──────────┐
    │ #0       │ #1       │
    │ device 0 │ device 1 │
    └──────────┴──────────┘
    <BLANKLINE>
    Devices: 2
    → x
      x=0        x=1
    ┌──────────┬──────────┐
    │ device 0 │ device 1 │
    │ #0 [0:4] │ #1 [4:8] │
    └──────────┴──────────┘
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
    first = f"device {device} ({coordinate_text(layout, device)}) holds {index}"
    devices = devices_text(layout.shard_devices(coordinates), layout.n_replicas)
    is_replicated = layout.n_replicas > 1
    second = f"this shard is replicated on {devices}" if is_replicated else "no replicas"
    return f"{first} of {array_text(layout)}: {size}\n{second}"
