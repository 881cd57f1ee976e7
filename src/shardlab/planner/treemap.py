"""The treemap: one tile per tensor, as large as its bytes on a device, in the hues of its sharding.

The hues are those of the mesh axes that shard the tensor, as in every picture. Color is never the
only sign: what is replicated is also hatched, and the tooltip says all in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardlab._text.printable import printable_text
from shardlab._text.units import bytes_text, share_text
from shardlab.planner.plan import DeviceBytes, Plan, PlanRow
from shardlab.planner.plan_text import kind_text
from shardlab.planner.tensor_table import RowGroup, group_rows, name_in_group, shorter_names
from shardlab.render.palette import FAINT, LINE, PANEL, PAPER, axis_shade, slate_shade
from shardlab.render.picture import AxisKey, Paint
from shardlab.render.svg import draw_keys
from shardlab.render.svg_marks import (
    BAND_HEIGHT,
    LINE_HEIGHT,
    MARGIN,
    Box,
    SvgCanvas,
    draw_title,
    flow_entries,
)
from shardlab.render.text_width import text_width

_WIDTH, _HEIGHT = 940.0, 520.0  # pixels
_GROUP_HEADER = 20.0  # pixels above the tiles of a group, if it is tall enough
_MIN_SHARE = 1 / 1500  # of the total: smaller tiles are merged, they would be invisible
_MIN_LEGEND_SHARE = 1e-4  # of the total: a style that smaller tiles have is not in the legend
_BY_FORMULA = Paint((slate_shade(3, 5),))


@dataclass(frozen=True)
class TileStyle:
    """How a tile looks, and what that means."""

    label: str
    paint: Paint


BY_FORMULA = TileStyle("by formula", _BY_FORMULA)


def sharding_style(array: DeviceBytes, plan: Plan) -> TileStyle:
    """Return the style of an array: the hues of its mesh axes, hatched if it is replicated."""
    used = {name for names in array.spec.axes for name in names}
    colors = tuple(
        axis_shade(axis, 0, 1)  # one device is drawn, of any coordinate
        for axis, (name, size) in enumerate(plan.mesh)
        if name in used and size > 1
    )
    if plan.n_devices == 1:
        return TileStyle("stored on the only device", Paint((slate_shade(0, 2),)))
    if array.n_replicas == 1:
        return TileStyle("sharded over all devices", Paint(colors or (slate_shade(0, 2),)))
    is_everywhere = array.n_replicas >= plan.n_devices
    label = "replicated on every device" if is_everywhere else "replicated on some devices"
    return TileStyle(label, Paint(colors or (slate_shade(0, 2),), "replica"))


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One tensor, or several small ones."""

    n_bytes: int
    name: str
    details: str  # shown on hover
    style: TileStyle
    arrays: str = ""  # which arrays, if those of one tensor have different tiles: "mu, nu"

    @property
    def full_name(self) -> str:
        return f"{self.name}: {self.arrays}" if self.arrays else self.name


def treemap_svg(plan: Plan) -> str:
    """Return the bytes of one device as an SVG element, grouped by layer."""
    groups = [(name, tiles) for name, tiles in _tile_groups(plan) if tiles]
    total = sum(tile.n_bytes for _, tiles in groups for tile in tiles)
    title = printable_text(
        f"{plan.model} on {plan.mesh_summary}: {bytes_text(total)} on each device"
    )
    visible = [
        tile.style
        for _, tiles in groups
        for tile in tiles
        if tile.n_bytes >= total * _MIN_LEGEND_SHARE
    ]
    canvas = SvgCanvas()
    top = draw_title(canvas, title, [], is_code=False)
    top = draw_keys(canvas, _axis_keys(plan, visible), top, MARGIN + _WIDTH)
    top = _draw_legend(canvas, visible, top) + 8
    boxes = squarify(
        [_total_bytes(tiles) for _, tiles in groups],
        Box(x=MARGIN, y=top, width=_WIDTH, height=_HEIGHT),
    )
    for (name, tiles), box in zip(groups, boxes, strict=True):
        _draw_group(canvas, name, tiles, box, total)
    description = "; ".join(f"{name}: {bytes_text(_total_bytes(tiles))}" for name, tiles in groups)
    return canvas.to_svg(title, f"{title}. {description or 'nothing'}")


def _axis_keys(plan: Plan, styles: Sequence[TileStyle]) -> list[AxisKey]:
    """Return the legend of the mesh axes that shard a visible tile."""
    shades = {color for style in styles for color in style.paint.colors}
    return [
        AxisKey(name, axis, size, "shards", has_shades=False)
        for axis, (name, size) in enumerate(plan.mesh)
        if axis_shade(axis, 0, 1) in shades
    ]


def _draw_legend(canvas: SvgCanvas, styles: Sequence[TileStyle], y: float) -> float:
    """Draw the styles without a hue of their own; return the y position below."""
    entries: dict[str, Paint] = {}
    for style in styles:
        if style.label != "sharded over all devices":
            entries.setdefault(style.label, style.paint)
    widths = [text_width(label) + 46 for label in entries]
    places = list(flow_entries(widths, MARGIN, MARGIN + _WIDTH))
    for (label, paint), (x, line) in zip(entries.items(), places, strict=True):
        top = y + 4 + line * LINE_HEIGHT * 1.2
        canvas.paint(Box(x=x, y=top, width=18, height=13), paint, radius=2)
        canvas.text(x + 24, top + 11, label, FAINT)
    return y + (4 + LINE_HEIGHT * 1.2 * (places[-1][1] + 1) if places else 0.0)


def squarify(sizes: Sequence[float], box: Box) -> list[Box]:
    """Return a box for each size, largest first, as near to squares as possible.

    Bruls, Huizing and van Wijk, "Squarified Treemaps" (2000): a strip along the shorter side takes
    sizes as long as that improves the worst aspect ratio in it.

    >>> boxes = squarify([6, 6, 4, 3, 2, 2, 1], Box(x=0, y=0, width=6, height=4))
    >>> [(box.width, box.height) for box in boxes][:2]
    [(3.0, 2.0), (3.0, 2.0)]
    """
    remaining = [float(size) for size in sizes]
    # Pixels per byte; constant, so areas stay comparable over all strips.
    scale = box.width * box.height / sum(remaining) if sum(remaining) else 0.0
    boxes: list[Box] = []
    while remaining:
        side = min(box.width, box.height)
        count = 1
        # Greedy, as in the paper: the first size that makes the ratio worse ends the strip.
        while count < len(remaining) and _worst_ratio(
            remaining[: count + 1], side, scale
        ) <= _worst_ratio(remaining[:count], side, scale):
            count += 1
        strip, remaining = remaining[:count], remaining[count:]
        strip_boxes, box = _fill_strip(strip, box, scale)
        boxes += strip_boxes
    return boxes


def _fill_strip(strip: Sequence[float], box: Box, scale: float) -> tuple[list[Box], Box]:
    """Return the boxes of one strip along the shorter side, and the rest of the box."""
    side, total = min(box.width, box.height), sum(strip)
    # Never thicker than what is left: rounding would push the last strip over the edge.
    thickness = min(total * scale / side, max(box.width, box.height)) if side else 0.0
    is_vertical = box.width >= box.height
    boxes, offset = [], 0.0
    for size in strip:
        length = size * side / total if total else 0.0
        if is_vertical:
            boxes.append(Box(x=box.x, y=box.y + offset, width=thickness, height=length))
        else:
            boxes.append(Box(x=box.x + offset, y=box.y, width=length, height=thickness))
        offset += length
    if is_vertical:
        width = max(box.width - thickness, 0.0)
        return boxes, Box(x=box.x + thickness, y=box.y, width=width, height=box.height)
    height = max(box.height - thickness, 0.0)
    return boxes, Box(x=box.x, y=box.y + thickness, width=box.width, height=height)


def _worst_ratio(strip: Sequence[float], side: float, scale: float) -> float:
    """Return the worst aspect ratio of a strip: the longer side by the shorter."""
    area = sum(strip) * scale
    if not area or not side or not min(strip):
        return float("inf")
    thickness = area / side
    # The extremes are enough: all boxes of a strip have the same thickness.
    ratios = [(size * scale / thickness) / thickness for size in (max(strip), min(strip))]
    return max(max(ratio, 1 / ratio) for ratio in ratios)


def _total_bytes(tiles: Sequence[Tile]) -> int:
    return sum(tile.n_bytes for tile in tiles)


def _tile_groups(plan: Plan) -> list[tuple[str, list[Tile]]]:
    groups = [
        (group.title, [tile for row in group.rows for tile in _row_tiles(row, group, plan)])
        for group in group_rows(plan, show_all=True)
    ]
    tiles_by_kind: dict[str, list[Tile]] = {}
    for item in plan.items:
        tile = Tile(
            n_bytes=item.bytes_per_device, name=item.name, details=item.formula, style=BY_FORMULA
        )
        tiles_by_kind.setdefault(kind_text(item.kind), []).append(tile)
    min_bytes = plan.bytes_per_device * _MIN_SHARE
    merged = [
        (name, _merge_small_tiles(tiles, min_bytes))
        for name, tiles in (*groups, *tiles_by_kind.items())
    ]
    return sorted(merged, key=lambda group: -_total_bytes(group[1]))


def _merge_small_tiles(tiles: list[Tile], min_bytes: float) -> list[Tile]:
    """Return the tiles largest first, the invisible ones merged into one per style."""
    tiles = sorted((tile for tile in tiles if tile.n_bytes), key=lambda tile: -tile.n_bytes)
    # Per style, so that a merged tile still says whether it is replicated.
    merged = [tile for tile in tiles if tile.n_bytes >= min_bytes]
    for style in dict.fromkeys(tile.style for tile in tiles):
        small = [tile for tile in tiles if tile.n_bytes < min_bytes and tile.style == style]
        if small:
            merged.append(
                Tile(
                    n_bytes=_total_bytes(small),
                    name=f"{len(small)} more",
                    details=", ".join(tile.full_name for tile in small[:8]),
                    style=style,
                )
            )
    return sorted(merged, key=lambda tile: -tile.n_bytes)


def _row_tiles(row: PlanRow, group: RowGroup, plan: Plan) -> Iterator[Tile]:
    """Yield one tile per tensor with its states, or one per number of replicas (ZeRO)."""
    by_replicas: dict[int, list[DeviceBytes]] = {}
    for array in row.arrays:
        by_replicas.setdefault(array.n_replicas, []).append(array)
    for n_replicas, arrays in by_replicas.items():
        names = ", ".join(array.name for array in arrays) if len(by_replicas) > 1 else ""
        replicas = f", each shard on {n_replicas:,} devices" if n_replicas > 1 else ""
        yield Tile(
            n_bytes=sum(array.bytes_per_device for array in arrays),
            name=name_in_group(row, group),
            details=f"{row.path} ×{row.n_tensors:,}, {plan.array_text(arrays[0])}{replicas}",
            style=sharding_style(arrays[0], plan),
            arrays=names,
        )


def _draw_group(canvas: SvgCanvas, name: str, tiles: list[Tile], box: Box, total: int) -> None:
    label = f"{printable_text(name)}: {bytes_text(_total_bytes(tiles))}"
    has_header = box.height > 3 * _GROUP_HEADER and box.width > 60
    header = _GROUP_HEADER if has_header else 0.0
    with canvas.hover(f"{label}, {share_text(_total_bytes(tiles), total)}"):
        canvas.box(box, PANEL, stroke=LINE)
        if has_header:
            labels = (label, printable_text(name), printable_text(name).split(" ")[0])
            fitting = (text for text in labels if _fits(text, box.width - 10, is_bold=True))
            canvas.text(box.x + 5, box.y + 14, next(fitting, ""), is_bold=True)
        inner = Box(
            x=box.x + 1,
            y=box.y + header,
            width=max(box.width - 2, 0),
            height=max(box.height - header - 1, 0),
        )
        boxes = squarify([tile.n_bytes for tile in tiles], inner)
        for tile, tile_box in zip(tiles, boxes, strict=True):
            _draw_tile(canvas, tile, tile_box, total)


def _draw_tile(canvas: SvgCanvas, tile: Tile, box: Box, total: int) -> None:
    share = share_text(tile.n_bytes, total)
    hover = (
        f"{tile.full_name}: {bytes_text(tile.n_bytes)}, {share}; {tile.style.label}; {tile.details}"
    )
    with canvas.hover(printable_text(hover)):
        if min(box.width, box.height) > 6:
            canvas.paint(box.shrink(0.5), tile.style.paint, radius=2)
        else:
            canvas.box(box, tile.style.paint.colors[0], stroke=PAPER)
        for index, line in enumerate(_tile_lines(tile, box)):
            y = box.y + 16 + LINE_HEIGHT * index
            width = text_width(line)
            if tile.style.paint.texture:
                middle = box.x + 6 + width / 2
                canvas.backdrop(middle, y, width, 12.0, tile.style.paint.colors[0])
            canvas.text(box.x + 6, y, line)


def _fits(text: str, width: float, *, is_bold: bool = False) -> bool:
    return text_width(text, is_bold=is_bold) <= width


def _tile_lines(tile: Tile, box: Box) -> list[str]:
    """Return the lines of text that fit into a tile: name, arrays, bytes."""
    amount = bytes_text(tile.n_bytes)
    width = box.width - 12
    height = box.height - BAND_HEIGHT * (len(tile.style.paint.colors) - 1)
    if not _fits(amount, width) or height < LINE_HEIGHT + 5:
        return []
    arrays = printable_text(tile.arrays)
    name = shorten_name(printable_text(tile.name), arrays, width)
    if height < LINE_HEIGHT * 2 + 5:
        one_line = f"{printable_text(tile.full_name)} {amount}"
        return [one_line if _fits(one_line, width) else name or amount]
    lines = [line for line in (name, amount) if line]
    are_arrays_missing = arrays not in name and _fits(arrays, width)
    if are_arrays_missing and height >= LINE_HEIGHT * 3 + 5:
        lines.insert(1, arrays)
    return lines


def shorten_name(name: str, arrays: str, width: float) -> str:
    """Return a name in as many words as fit, with its arrays if possible; empty if none fits.

    >>> [shorten_name("mlp.up_proj.weight", "", width) for width in (140, 85, 60, 45)]
    ['mlp.up_proj.weight', 'mlp.up_proj', 'up_proj', '']
    >>> [shorten_name("mlp.up_proj.weight", "mu, nu", width) for width in (140, 110, 60)]
    ['mlp.up_proj: mu, nu', 'up_proj: mu, nu', 'up_proj']
    """
    names = (name, *shorter_names(name.split(" ×")[0].split(" (")[0]))
    with_arrays = [f"{shorter}: {arrays}" for shorter in names] if arrays else []
    return next((text for text in (*with_arrays, *names) if _fits(text, width)), "")
