"""The treemap: an area for each tensor as large as its bytes on a device, sharded or replicated.

Colour never speaks alone: what is replicated is also hatched, and its label says on how many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from shardlab._text.printable import printable_text
from shardlab._text.units import bytes_text, share_text
from shardlab.planner.plan import DeviceBytes, Plan, PlanRow
from shardlab.planner.plan_text import kind_text
from shardlab.planner.tensor_table import Group, groups_of, name_in, shorter_names
from shardlab.render.palette import fill_color
from shardlab.render.svg import INK, LETTER, LINE, MARGIN, svg_header, svg_text

_WIDE, _HIGH = 940.0, 520.0  # pixels
_HEAD = 18.0  # above the tensors of a group, where there is room
_LEAST = 1 / 1500  # of the whole: what is smaller is drawn together
# words -> fill; the hatching is the pattern of the same number
_LOOKS = {
    "cut over all devices": fill_color(9),
    "some devices hold the same": fill_color(11),
    "every device holds the same": fill_color(13),
    "by formula": fill_color(15),
}


@dataclass(frozen=True, kw_only=True)
class Box:
    """A place of a size in pixels."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One tensor, or several small ones: its size, its words, and how it is held."""

    n_bytes: int
    name: str
    said: str
    look: str


def treemap_svg(plan: Plan) -> str:
    """Return the bytes of one device as an SVG element, grouped by layer."""
    groups = [(name, tiles) for name, tiles in _groups(plan) if tiles]
    whole = sum(tile.n_bytes for _, tiles in groups for tile in tiles)
    title = printable_text(f"{plan.model} on {plan.mesh_words}: {bytes_text(whole)} on each device")
    looks = {tile.look for _, tiles in groups for tile in tiles if tile.n_bytes >= whole * 1e-4}
    width = max(2 * MARGIN + _WIDE, 2 * MARGIN + len(title) * LETTER * 1.17)
    top = MARGIN + LINE * 1.6
    legend = list(_legend(plan, [look for look in _LOOKS if look in looks], top + _HIGH, width))
    height = top + _HIGH + LINE * (2 + (legend[-1][1] if legend else 0)) + MARGIN / 2
    said = "; ".join(f"{name}: {bytes_text(_sum(tiles))}" for name, tiles in groups)
    parts = [*svg_header(title, f"{title}. {said or 'nothing'}", width, height), *_patterns()]
    parts.append(svg_text(MARGIN, MARGIN + LINE * 0.6, title, INK, kind="t"))
    boxes = squarified(
        [_sum(tiles) for _, tiles in groups], Box(x=MARGIN, y=top, width=_WIDE, height=_HIGH)
    )
    for (name, tiles), box in zip(groups, boxes, strict=True):
        parts += _group_marks(name, tiles, box, whole)
    parts += [mark for mark, _ in legend]
    return "\n".join([*parts, "</svg>"])


def squarified(sizes: Sequence[float], box: Box) -> list[Box]:
    """Return a place for each size, largest first, as near to squares as it gets.

    Bruls, Huizing and van Wijk, "Squarified Treemaps" (2000): a strip along the shorter side
    takes sizes as long as that makes its worst place less oblong.

    >>> [(b.width, b.height) for b in squarified([6, 6, 4, 3, 2, 2, 1], Box(0, 0, 6, 4))][:2]
    [(3.0, 2.0), (3.0, 2.0)]
    """
    left = [float(size) for size in sizes]
    scale = box.width * box.height / sum(left) if sum(left) else 0.0
    places: list[Box] = []
    while left:
        side = min(box.width, box.height)
        n = 1
        while n < len(left) and _worst(left[: n + 1], side, scale) <= _worst(left[:n], side, scale):
            n += 1
        strip, left = left[:n], left[n:]
        room = max(box.width, box.height)  # what is left to the last strip, rounded as it is
        total = sum(strip)
        thick = min(total * scale / side, room) if side else 0.0
        offset = 0.0
        for size in strip:
            long = size * side / total if total else 0.0
            if box.width >= box.height:
                places.append(Box(x=box.x, y=box.y + offset, width=thick, height=long))
            else:
                places.append(Box(x=box.x + offset, y=box.y, width=long, height=thick))
            offset += long
        if box.width >= box.height:
            box = Box(
                x=box.x + thick, y=box.y, width=max(box.width - thick, 0.0), height=box.height
            )
        else:
            box = Box(
                x=box.x, y=box.y + thick, width=box.width, height=max(box.height - thick, 0.0)
            )
    return places


def _worst(strip: Sequence[float], side: float, scale: float) -> float:
    """Return how oblong the worst place of a strip is: its longer side by its shorter."""
    area = sum(strip) * scale
    if not area or not side or not min(strip):
        return float("inf")
    thick = area / side
    sides = [(size * scale / thick) / thick for size in (max(strip), min(strip))]
    return max(max(ratio, 1 / ratio) for ratio in sides)


def _sum(tiles: Sequence[Tile]) -> int:
    return sum(tile.n_bytes for tile in tiles)


def _groups(plan: Plan) -> list[tuple[str, list[Tile]]]:
    groups = [
        (group.title, [tile for row in group.rows for tile in _tiles(row, group, plan)])
        for group in groups_of(plan, show_all=True)
    ]
    kinds: dict[str, list[Tile]] = {}
    for item in plan.items:
        tile = Tile(
            n_bytes=item.bytes_per_device, name=item.name, said=item.formula, look="by formula"
        )
        kinds.setdefault(kind_text(item.kind), []).append(tile)
    least = plan.bytes_per_device * _LEAST
    joined = [(name, _joined(tiles, least)) for name, tiles in (*groups, *kinds.items())]
    return sorted(joined, key=lambda group: -_sum(group[1]))


def _joined(tiles: list[Tile], least: float) -> list[Tile]:
    """Return the tiles largest first, those that nobody could see as one of each look."""
    tiles = sorted((tile for tile in tiles if tile.n_bytes), key=lambda tile: -tile.n_bytes)
    kept = [tile for tile in tiles if tile.n_bytes >= least]
    for look in _LOOKS:
        small = [tile for tile in tiles if tile.n_bytes < least and tile.look == look]
        if small:
            names = ", ".join(tile.name for tile in small[:8])
            kept.append(Tile(n_bytes=_sum(small), name=f"{len(small)} more", said=names, look=look))
    return sorted(kept, key=lambda tile: -tile.n_bytes)


def _tiles(row: PlanRow, group: Group, plan: Plan) -> Iterator[Tile]:
    """Yield a tile for a tensor with all that is kept beside it, or one for each way of holding."""
    ways: dict[int, list[DeviceBytes]] = {}
    for held in row.held:
        ways.setdefault(held.n_copies, []).append(held)
    for n_copies, arrays in ways.items():
        name = name_in(row, group)
        if len(ways) > 1:
            name = f"{name}: {', '.join(held.name for held in arrays)}"
        copies = f", each piece on {n_copies:,} devices" if n_copies > 1 else ""
        said = f"{row.path} ×{row.n_tensors:,}, {plan.array_text(arrays[0])}{copies}"
        n_bytes = sum(held.bytes_per_device for held in arrays)
        yield Tile(n_bytes=n_bytes, name=name, said=said, look=_look(n_copies, plan))


def _look(n_copies: int, plan: Plan) -> str:
    if n_copies == 1:
        return "cut over all devices"
    every = n_copies >= plan.n_devices
    return "every device holds the same" if every else "some devices hold the same"


def _group_marks(name: str, tiles: list[Tile], box: Box, whole: int) -> Iterator[str]:
    label = f"{printable_text(name)}: {bytes_text(_sum(tiles))}"
    has_head = box.height > 3 * _HEAD and box.width > 60
    head = _HEAD if has_head else 0.0
    yield f"<g><title>{escape(f'{label}, {share_text(_sum(tiles), whole)}')}</title>"
    yield _rect(box, "#E8E8E8", stroke=INK)
    if has_head:
        titles = (label, printable_text(name), printable_text(name).split(" ")[0])
        fitting = next((each for each in titles if len(each) * LETTER <= box.width - 8), titles[2])
        yield svg_text(box.x + 5, box.y + 13, _cut(fitting, box.width - 8), INK, kind="h")
    inner = Box(
        x=box.x + 1,
        y=box.y + head,
        width=max(box.width - 2, 0),
        height=max(box.height - head - 1, 0),
    )
    places = squarified([tile.n_bytes for tile in tiles], inner)
    for tile, place in zip(tiles, places, strict=True):
        yield from _tile_marks(tile, place, whole)
    yield "</g>"


def _tile_marks(tile: Tile, box: Box, whole: int) -> Iterator[str]:
    amount = bytes_text(tile.n_bytes)
    hover = f"{tile.name}: {amount}, {share_text(tile.n_bytes, whole)}; {tile.look}; {tile.said}"
    yield f"<g><title>{escape(printable_text(hover))}</title>"
    yield _rect(box, _LOOKS[tile.look], stroke="#FFFFFF")
    number = list(_LOOKS).index(tile.look)
    if number in (1, 2):
        yield _rect(box, f"url(#hatch{number})")
    name, arrays = (
        _cut(printable_text(tile.name), box.width - 8),
        printable_text(tile.name).partition(": ")[2],
    )
    lines = [line for line in (name, amount) if line]
    is_left_out = arrays not in name and len(arrays) * LETTER + 8 <= box.width
    if is_left_out and box.height >= LINE * 3 + 4:
        lines.insert(1, arrays)
    if len(amount) * LETTER + 8 > box.width or box.height < LINE + 4:
        lines = []
    elif box.height < LINE * 2 + 4:
        both = f"{printable_text(tile.name)} {amount}"
        lines = [both if len(both) * LETTER + 8 <= box.width else lines[0]]
    for n, line in enumerate(lines):
        yield _plate(line, box, n) if number in (1, 2) else ""
        yield svg_text(box.x + 5, box.y + 15 + LINE * n, line, INK)
    yield "</g>"


def _plate(line: str, box: Box, n: int) -> str:
    """Return a plate beneath words, so that hatching does not run through them."""
    width = len(line) * LETTER + 4
    return (
        f'<rect x="{box.x + 3:.1f}" y="{box.y + 4 + LINE * n:.1f}" width="{width:.1f}" '
        f'height="{LINE - 2}" fill="#FFFFFF" fill-opacity=".82"/>'
    )


def _cut(text: str, width: float) -> str:
    """Return as much of a name as there is room for: the end of a path says most.

    >>> [_cut("mlp.up_proj.weight", width) for width in (140, 85, 60, 45)]
    ['mlp.up_proj.weight', 'mlp.up_proj', 'up_proj', '…_proj']
    >>> [_cut("mlp.up_proj.weight: mu, nu", width) for width in (140, 110, 60)]
    ['mlp.up_proj: mu, nu', 'up_proj: mu, nu', 'up_proj']
    """
    n = int(width / LETTER)
    name, colon, arrays = text.partition(": ")
    names = (name, *shorter_names(name.split(" ×")[0].split(" (")[0]))
    for shorter in (*(each + colon + arrays for each in names), *names):
        if len(shorter) <= n:
            return shorter
    text = names[-1]
    return f"…{text[len(text) - n + 1 :]}" if n >= 5 else ""


def _rect(box: Box, fill: str, *, stroke: str = "") -> str:
    edge = f' stroke="{stroke}"' if stroke else ""
    return (
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" fill="{fill}"{edge}/>'
    )


def _patterns() -> Iterator[str]:
    """Yield the hatching: sparse for some devices, dense and crossed for every device."""
    yield "<defs>"
    for number, gap, path in ((1, 14, "M0 14L14 0"), (2, 9, "M0 9L9 0M0 0L9 9")):
        yield (
            f'<pattern id="hatch{number}" width="{gap}" height="{gap}" '
            f'patternUnits="userSpaceOnUse"><path d="{path}" stroke="#000" stroke-opacity=".28" '
            'stroke-width="1.2" fill="none"/></pattern>'
        )
    yield "</defs>"


def _legend(
    plan: Plan, looks: Sequence[str], bottom: float, width: float
) -> Iterator[tuple[str, int]]:
    x, line = float(MARGIN), 0
    for look in looks:
        words = "whole, on the one device" if plan.n_devices == 1 and "cut" in look else look
        room = len(words) * LETTER + 40
        if x + room > width - MARGIN and x > MARGIN:
            x, line = float(MARGIN), line + 1
        y = bottom + LINE * (1.5 + line)
        box = Box(x=x, y=y - 11, width=16, height=14)
        number = list(_LOOKS).index(look)
        hatch = _rect(box, f"url(#hatch{number})") if number in (1, 2) else ""
        yield _rect(box, _LOOKS[look], stroke=INK) + hatch + svg_text(x + 22, y, words, INK), line
        x += room
