"""Who sends to whom: the devices of one group on a circle, with an arrow for each message."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardlab.render.palette import FAINT, INK
from shardlab.render.picture import Paint
from shardlab.render.svg_marks import SMALL_SIZE, Box, SvgCanvas

_MAX_NODES = 12  # more do not have room for their numbers
_NODE = 9.0  # pixels: half of a node's side


def draw_ring(
    canvas: SvgCanvas,
    center: tuple[float, float],
    radius: float,
    nodes: Sequence[Paint],
    sends: Sequence[tuple[int, int]],
) -> None:
    """Draw the nodes clockwise from the top, each with its number, and the arrows between them.

    Of a large group every n-th node is drawn, without numbers: the shades still show the order.
    """
    step = -(-len(nodes) // _MAX_NODES)
    shown = list(range(0, len(nodes), step))
    half = _NODE if step == 1 else _NODE * 0.55
    points = [_point(center, radius, n, len(shown)) for n in range(len(shown))]
    pairs = [(sender, receiver) for sender, receiver in sends if sender != receiver]
    if step > 1:
        pairs = _abridged_pairs(pairs, len(nodes), len(shown))
    # Arrows between all pairs of a large group would cover each other: lines show enough.
    is_dense = len(pairs) > 4 * len(points)
    for sender, receiver in pairs:
        if is_dense and sender < receiver:
            canvas.line((points[sender], points[receiver]), FAINT, width=0.7)
        elif not is_dense:
            _draw_send(canvas, points[sender], points[receiver], half + 2)
    for number, (x, y) in zip(shown, points, strict=True):
        box = Box(x=x - half, y=y - half, width=2 * half, height=2 * half)
        canvas.paint(box, nodes[number])
        if step == 1:
            canvas.text(x, y + 4, str(number), anchor="middle", size=SMALL_SIZE)


def _point(center: tuple[float, float], radius: float, n: int, total: int) -> tuple[float, float]:
    angle = 2 * math.pi * n / total - math.pi / 2
    return center[0] + radius * math.cos(angle), center[1] + radius * math.sin(angle)


def _abridged_pairs(
    pairs: Sequence[tuple[int, int]], n: int, n_shown: int
) -> list[tuple[int, int]]:
    """Return the arrows between the drawn nodes: those of a ring if all messages go to the next."""
    if all((receiver - sender) % n == 1 for sender, receiver in pairs):
        return [(node, (node + 1) % n_shown) for node in range(n_shown)]
    return []


def _draw_send(
    canvas: SvgCanvas,
    start: tuple[float, float],
    end: tuple[float, float],
    margin: float,
) -> None:
    """Draw an arrow between two nodes that leaves both uncovered."""
    (x0, y0), (x1, y1) = start, end
    length = math.hypot(x1 - x0, y1 - y0)
    if length <= 2 * margin + 4:
        return
    ux, uy = (x1 - x0) / length, (y1 - y0) / length
    # Beside the straight line: messages in both directions are then two arrows.
    sx, sy = -uy * 2.5, ux * 2.5
    canvas.arrow(
        (
            (x0 + ux * margin * 1.25 + sx, y0 + uy * margin * 1.25 + sy),
            (x1 - ux * margin * 1.25 + sx, y1 - uy * margin * 1.25 + sy),
        ),
        INK,
        width=1.1,
    )
