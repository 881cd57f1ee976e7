"""The treemap: one tile per tensor, as large as its bytes on a device, sharded or replicated.

Color is never the only sign: what is replicated is also hatched, and its label says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from shardlab._text.printable import printable_text
from shardlab._text.units import bytes_text, share_text
from shardlab.planner.plan import DeviceBytes, Plan, PlanRow
from shardlab.planner.plan_text import kind_text
from shardlab.planner.tensor_table import RowGroup, group_rows, name_in_group, shorter_names
from shardlab.render.palette import fill_color
from shardlab.render.svg import INK, LETTER, LINE, MARGIN, svg_header, svg_text

_WIDTH, _HEIGHT = 940.0, 520.0  # pixels
_GROUP_HEADER = 18.0  # pixels above the tiles of a group, if it is tall enough
_MIN_SHARE = 1 / 1500  # of the total: smaller tiles are merged, they would be invisible
_MIN_LEGEND_SHARE = 1e-4  # of the total: a style that smaller tiles have is not in the legend
_TITLE_SCALE = 1.17  # width of a letter of the title / of other text


@dataclass(frozen=True)
class TileStyle:
    """How a tile looks, and what that means."""

    label: str
    fill: str
    hatch: str = ""  # id of a pattern


SHARDED = TileStyle("sharded over all devices", fill_color(9))
PARTLY_REPLICATED = TileStyle("replicated on some devices", fill_color(11), "hatch1")
REPLICATED = TileStyle("replicated on every device", fill_color(13), "hatch2")
BY_FORMULA = TileStyle("by formula", fill_color(15))
TILE_STYLES = (SHARDED, PARTLY_REPLICATED, REPLICATED, BY_FORMULA)


@dataclass(frozen=True, kw_only=True)
class Box:
    """A rectangle in pixels."""

    x: float
    y: float
    width: float
    height: float


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
    used_styles = {
        tile.style
        for _, tiles in groups
        for tile in tiles
        if tile.n_bytes >= total * _MIN_LEGEND_SHARE
    }
    width = max(2 * MARGIN + _WIDTH, 2 * MARGIN + len(title) * LETTER * _TITLE_SCALE)
    top = MARGIN + LINE * 1.6
    styles = [style for style in TILE_STYLES if style in used_styles]
    legend = list(_legend_marks(plan, styles, top + _HEIGHT, width))
    height = top + _HEIGHT + LINE * (2 + (legend[-1][1] if legend else 0)) + MARGIN / 2
    description = "; ".join(f"{name}: {bytes_text(_total_bytes(tiles))}" for name, tiles in groups)
    parts = [*svg_header(title, f"{title}. {description or 'nothing'}", width, height)]
    parts += _hatch_patterns()
    parts.append(svg_text(MARGIN, MARGIN + LINE * 0.6, title, INK, kind="t"))
    boxes = squarify(
        [_total_bytes(tiles) for _, tiles in groups],
        Box(x=MARGIN, y=top, width=_WIDTH, height=_HEIGHT),
    )
    for (name, tiles), box in zip(groups, boxes, strict=True):
        parts += _group_marks(name, tiles, box, total)
    parts += [mark for mark, _ in legend]
    return "\n".join([*parts, "</svg>"])


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
    for style in TILE_STYLES:
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
            style=_tile_style(n_replicas, plan),
            arrays=names,
        )


def _tile_style(n_replicas: int, plan: Plan) -> TileStyle:
    if n_replicas == 1:
        return SHARDED
    return REPLICATED if n_replicas >= plan.n_devices else PARTLY_REPLICATED


def _group_marks(name: str, tiles: list[Tile], box: Box, total: int) -> Iterator[str]:
    label = f"{printable_text(name)}: {bytes_text(_total_bytes(tiles))}"
    has_header = box.height > 3 * _GROUP_HEADER and box.width > 60
    header = _GROUP_HEADER if has_header else 0.0
    hover = f"{label}, {share_text(_total_bytes(tiles), total)}"
    yield f"<g><title>{escape(hover)}</title>"
    yield _rect_svg(box, "#E8E8E8", stroke=INK)
    if has_header:
        labels = (label, printable_text(name), printable_text(name).split(" ")[0])
        fitting = next((text for text in labels if len(text) * LETTER <= box.width - 8), labels[2])
        header_text = _truncate_name(fitting, "", box.width - 8)
        yield svg_text(box.x + 5, box.y + 13, header_text, INK, kind="h")
    inner = Box(
        x=box.x + 1,
        y=box.y + header,
        width=max(box.width - 2, 0),
        height=max(box.height - header - 1, 0),
    )
    boxes = squarify([tile.n_bytes for tile in tiles], inner)
    for tile, tile_box in zip(tiles, boxes, strict=True):
        yield from _tile_marks(tile, tile_box, total)
    yield "</g>"


def _tile_marks(tile: Tile, box: Box, total: int) -> Iterator[str]:
    share = share_text(tile.n_bytes, total)
    hover = (
        f"{tile.full_name}: {bytes_text(tile.n_bytes)}, {share}; {tile.style.label}; {tile.details}"
    )
    yield f"<g><title>{escape(printable_text(hover))}</title>"
    yield _rect_svg(box, tile.style.fill, stroke="#FFFFFF")
    if tile.style.hatch:
        yield _rect_svg(box, f"url(#{tile.style.hatch})")
    for index, line in enumerate(_tile_lines(tile, box)):
        if tile.style.hatch:
            yield _text_background(line, box, index)
        yield svg_text(box.x + 5, box.y + 15 + LINE * index, line, INK)
    yield "</g>"


def _tile_lines(tile: Tile, box: Box) -> list[str]:
    """Return the lines of text that fit into a tile: name, arrays, bytes."""
    amount = bytes_text(tile.n_bytes)
    if len(amount) * LETTER + 8 > box.width or box.height < LINE + 4:
        return []
    arrays = printable_text(tile.arrays)
    name = _truncate_name(printable_text(tile.name), arrays, box.width - 8)
    if box.height < LINE * 2 + 4:
        one_line = f"{printable_text(tile.full_name)} {amount}"
        return [one_line if len(one_line) * LETTER + 8 <= box.width else name or amount]
    lines = [line for line in (name, amount) if line]
    are_arrays_missing = arrays not in name and len(arrays) * LETTER + 8 <= box.width
    if are_arrays_missing and box.height >= LINE * 3 + 4:
        lines.insert(1, arrays)
    return lines


def _text_background(line: str, box: Box, index: int) -> str:
    """Return a light rectangle below text, so that hatching does not run through it."""
    width = len(line) * LETTER + 4
    return (
        f'<rect x="{box.x + 3:.1f}" y="{box.y + 4 + LINE * index:.1f}" width="{width:.1f}" '
        f'height="{LINE - 2}" fill="#FFFFFF" fill-opacity=".82"/>'
    )


def _truncate_name(name: str, arrays: str, width: float) -> str:
    """Return as much of a name as fits, with its arrays if possible: a path's end says most.

    >>> [_truncate_name("mlp.up_proj.weight", "", width) for width in (140, 85, 60, 45)]
    ['mlp.up_proj.weight', 'mlp.up_proj', 'up_proj', '…_proj']
    >>> [_truncate_name("mlp.up_proj.weight", "mu, nu", width) for width in (140, 110, 60)]
    ['mlp.up_proj: mu, nu', 'up_proj: mu, nu', 'up_proj']
    """
    max_length = int(width / LETTER)
    names = (name, *shorter_names(name.split(" ×")[0].split(" (")[0]))
    with_arrays = [f"{shorter}: {arrays}" for shorter in names] if arrays else []
    for candidate in (*with_arrays, *names):
        if len(candidate) <= max_length:
            return candidate
    shortest = names[-1]
    if max_length < 5:
        return ""
    return f"…{shortest[len(shortest) - max_length + 1 :]}"


def _rect_svg(box: Box, fill: str, *, stroke: str = "") -> str:
    edge = f' stroke="{stroke}"' if stroke else ""
    return (
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" fill="{fill}"{edge}/>'
    )


def _hatch_patterns() -> Iterator[str]:
    """Yield the hatching: sparse for some devices, dense and crossed for all devices."""
    yield "<defs>"
    patterns = (
        (PARTLY_REPLICATED.hatch, 14, "M0 14L14 0"),
        (REPLICATED.hatch, 9, "M0 9L9 0M0 0L9 9"),
    )
    for pattern_id, gap, path in patterns:
        yield (
            f'<pattern id="{pattern_id}" width="{gap}" height="{gap}" '
            f'patternUnits="userSpaceOnUse"><path d="{path}" stroke="#000" stroke-opacity=".28" '
            'stroke-width="1.2" fill="none"/></pattern>'
        )
    yield "</defs>"


def _legend_marks(
    plan: Plan, styles: Sequence[TileStyle], bottom: float, width: float
) -> Iterator[tuple[str, int]]:
    """Yield the entries of the legend, each with its line number."""
    x, line = float(MARGIN), 0
    for style in styles:
        is_only_device = plan.n_devices == 1 and style == SHARDED
        label = "stored on the only device" if is_only_device else style.label
        entry_width = len(label) * LETTER + 40
        if x + entry_width > width - MARGIN and x > MARGIN:
            x, line = float(MARGIN), line + 1
        y = bottom + LINE * (1.5 + line)
        box = Box(x=x, y=y - 11, width=16, height=14)
        hatch = _rect_svg(box, f"url(#{style.hatch})") if style.hatch else ""
        label_svg = svg_text(x + 22, y, label, INK)
        yield _rect_svg(box, style.fill, stroke=INK) + hatch + label_svg, line
        x += entry_width
