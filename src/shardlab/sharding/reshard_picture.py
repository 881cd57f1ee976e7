"""Resharding as a picture: the layout before, the collectives between, the layout after."""

from __future__ import annotations

from collections.abc import Sequence

from shardlab._text.units import bytes_text
from shardlab.render.palette import FAINT, PANEL, Color, axis_shade
from shardlab.render.picture import AxisKey, Grid, Paint, Picture
from shardlab.render.svg import arrange_panels, draw_legend, draw_panel, measure_grid
from shardlab.render.svg_block import draw_block, measure_block
from shardlab.render.svg_marks import LINE_HEIGHT, MARGIN, SMALL_SIZE, Box, SvgCanvas, draw_title
from shardlab.render.svg_ring import draw_ring
from shardlab.render.text_width import wrap_to_width
from shardlab.sharding.layout import Layout
from shardlab.sharding.layout_picture import array_text, axis_keys
from shardlab.sharding.layout_render import page_picture
from shardlab.sharding.reshard import ReshardStep, reshard_text, sent_text

_STEP_WIDTH = 236.0  # pixels of the column of collectives
_RING_RADIUS = 30.0
_GAP = 44.0  # pixels for the arrows between the columns
_MAX_WIDTH = 1500.0  # pixels: wider columns are stacked
_HEADING = 24.0
_END_WIDTH = 470.0  # pixels of one layout, if it can be that narrow


def reshard_svg(before: Layout, after: Layout, steps: Sequence[ReshardStep]) -> str:
    """Return both layouts with the collectives that take one to the other, as an SVG element."""
    canvas = SvgCanvas()
    title = f"{array_text(before)}  {before.spec} → {after.spec}  on mesh {before.mesh}"
    top = draw_title(canvas, title, [_summary(steps)], is_code=True)
    ends = [page_picture(end, _END_WIDTH) for end in (before, after)]
    legend = Picture(
        title="",
        facts=(),
        grids=tuple(grid for end in ends for grid in end.grids),
        alternative="",
        keys=_role_changes(before, after),
    )
    sizes = [_column_size(end) for end in ends]
    is_row = 2 * MARGIN + sum(w for w, _ in sizes) + _STEP_WIDTH + 2 * _GAP <= _MAX_WIDTH
    top = draw_legend(canvas, legend, top, max(canvas.right, sizes[0][0])) + 14
    if is_row:
        _draw_columns(canvas, ends, (before, after), steps, top)
    else:
        _draw_stack(canvas, ends, (before, after), steps, top)
    described = "; ".join(map(str.strip, reshard_text(before, after, steps).splitlines()))
    return canvas.to_svg(title, f"{title}. {described}")


def _summary(steps: Sequence[ReshardStep]) -> str:
    if not steps:
        return "no communication: each device already holds its shard"
    return sent_text(steps) if any(step.sent_bytes for step in steps) else "free: nothing is sent"


def _role_changes(before: Layout, after: Layout) -> tuple[AxisKey, ...]:
    """Return the legend of hues: what each mesh axis does before and after."""
    return tuple(
        AxisKey(
            old.name,
            old.axis,
            old.size,
            old.role if old.role == new.role else f"{old.role} → {new.role}",
        )
        for old, new in zip(axis_keys(before), axis_keys(after), strict=True)
    )


def _panel_sizes(end: Picture) -> list[tuple[float, float]]:
    grids = end.grids[1:] if end.block is not None else end.grids
    sizes = [(panel.width, panel.height) for panel in map(measure_grid, grids)]
    return [*([measure_block(end.block)] if end.block is not None else []), *sizes]


def _column_size(end: Picture) -> tuple[float, float]:
    sizes = _panel_sizes(end)
    height = sum(size[1] for size in sizes) + 20 * (len(sizes) - 1)
    return max(size[0] for size in sizes), height + _HEADING


def _draw_end(
    canvas: SvgCanvas, heading: str, end: Picture, positions: Sequence[tuple[float, float]]
) -> None:
    """Draw one layout: its heading, then its panels at their positions."""
    x, y = positions[0]
    canvas.text(x, y - 8, heading, size=13, is_bold=True, is_code=True)
    places = list(positions)
    if end.block is not None:
        draw_block(canvas, end.block, *places.pop(0))
    grids: Sequence[Grid] = end.grids[1:] if end.block is not None else end.grids
    for grid, place in zip(grids, places, strict=True):
        draw_panel(canvas, measure_grid(grid), *place)


def _draw_columns(
    canvas: SvgCanvas,
    ends: Sequence[Picture],
    layouts: tuple[Layout, Layout],
    steps: Sequence[ReshardStep],
    top: float,
) -> None:
    """Draw before, collectives and after from left to right."""
    lefts = [MARGIN, MARGIN + _column_size(ends[0])[0] + _STEP_WIDTH + 2 * _GAP]
    for end, described, x in zip(ends, layouts, lefts, strict=True):
        y, places = top + _HEADING, []
        for _, height in _panel_sizes(end):
            places.append((x, y))
            y += height + 20
        _draw_end(canvas, str(described.spec), end, places)
    x = lefts[1] - _STEP_WIDTH - _GAP
    y = top + _HEADING
    middle = y + 46
    canvas.arrow(((x - _GAP + 8, middle), (x - 6, middle)), FAINT, width=2)
    for number, step in enumerate(steps):
        bottom = _draw_step(canvas, step, number, x, y)
        if number < len(steps) - 1:
            center = x + _STEP_WIDTH / 2
            canvas.arrow(((center, bottom + 2), (center, bottom + 20)), FAINT, width=2)
            y = bottom + 22
        else:
            y = (y + bottom) / 2
    if not steps:
        canvas.text(x, middle - 16, "no communication", FAINT)
        y = middle
    right = x + _STEP_WIDTH
    canvas.arrow(((right + 6, y), (right + _GAP - 8, y)), FAINT, width=2)


def _draw_stack(
    canvas: SvgCanvas,
    ends: Sequence[Picture],
    layouts: tuple[Layout, Layout],
    steps: Sequence[ReshardStep],
    top: float,
) -> None:
    """Draw before, collectives and after from top to bottom."""
    for number, (end, described) in enumerate(zip(ends, layouts, strict=True)):
        positions, _ = arrange_panels(_panel_sizes(end))
        places = [(x, y + top + _HEADING) for x, y in positions]
        _draw_end(canvas, str(described.spec), end, places)
        if number == 1:
            break
        x, y = MARGIN, canvas.bottom + 16
        canvas.arrow(((x + 20, y), (x + 20, y + 26)), FAINT, width=2)
        bottom = y + 30
        for step_number, step in enumerate(steps):
            bottom = max(bottom, _draw_step(canvas, step, step_number, x, y + 30))
            x += _STEP_WIDTH + 14
        canvas.arrow(((MARGIN + 20, bottom + 4), (MARGIN + 20, bottom + 30)), FAINT, width=2)
        top = bottom + 36


def _draw_step(canvas: SvgCanvas, step: ReshardStep, number: int, x: float, y: float) -> float:
    """Draw one collective: its name, its cost, and who sends to whom; return the bottom."""
    names = ", ".join(step.mesh_axes)
    lines = [*wrap_to_width(_cost_line(step), _STEP_WIDTH - 28, SMALL_SIZE)]
    lines += [*wrap_to_width(_groups_line(step), _STEP_WIDTH - 28, SMALL_SIZE)]
    has_ring = step.kind != "slice"
    radius = _RING_RADIUS + 3.0 * min(max(step.group_size - 6, 0), 6)
    ring_height = 2 * radius + 34 if has_ring else 0.0
    head = wrap_to_width(f"{number + 1}. {step.kind} over {names}", _STEP_WIDTH - 30)
    height = 14 + LINE_HEIGHT * (len(head) + len(lines)) + ring_height
    canvas.box(Box(x=x, y=y, width=_STEP_WIDTH, height=height), PANEL, radius=6)
    for n, color in enumerate(_axis_colors(step)):  # a stripe in the hue of each mesh axis
        canvas.box(Box(x=x + 5 * n, y=y, width=5, height=height), color)
    left = x + 10 + 5 * len(step.mesh_axes)
    baseline = y + 18
    for line in head:
        canvas.text(left, baseline, line, is_bold=True)
        baseline += LINE_HEIGHT
    for line in lines:
        canvas.text(left, baseline, line, FAINT, size=SMALL_SIZE)
        baseline += LINE_HEIGHT
    if has_ring:
        center = (x + _STEP_WIDTH / 2, baseline + radius + 6)
        draw_ring(canvas, center, radius, _group_paints(step), _group_sends(step))
    return y + height


def _cost_line(step: ReshardStep) -> str:
    dims = "" if step.dim is None else f"dim {step.dim}"
    dims += "" if step.to_dim is None else f" → dim {step.to_dim}"
    cost = f"{step.senders_text()} {bytes_text(step.sent_bytes)}" if step.sent_bytes else "free"
    return f"{dims}: {cost}" if dims else cost


def _groups_line(step: ReshardStep) -> str:
    if step.kind == "slice":
        return "each device keeps a slice of its shard"
    n_groups = step.before.n_devices // step.group_size
    others = f", one of {n_groups:,} groups" if n_groups > 1 else ""
    return f"{step.group_size} devices in a group{others}"


def _axis_colors(step: ReshardStep) -> list[Color]:
    sizes = step.before.mesh.shape
    return [axis_shade(step.hues[name], sizes[name] - 1, sizes[name]) for name in step.mesh_axes]


def _group_paints(step: ReshardStep) -> list[Paint]:
    """Return the paints of the devices of one group, the last mesh axis fastest."""
    sizes = step.before.mesh.shape
    paints = []
    for member in range(step.group_size):
        colors: list[Color] = []
        rest = member
        for name in reversed(step.mesh_axes):
            rest, coordinate = divmod(rest, sizes[name])
            colors.insert(0, axis_shade(step.hues[name], coordinate, sizes[name]))
        paints.append(Paint(tuple(colors)))
    return paints


def _group_sends(step: ReshardStep) -> list[tuple[int, int]]:
    """Return who sends to whom: the next on a ring, all others, or the new owner of a shard."""
    n = step.group_size
    if step.kind == "all_gather":
        return [(member, (member + 1) % n) for member in range(n)]
    if step.kind == "all_to_all":
        return [(i, j) for i in range(n) for j in range(n) if i != j] if n <= 12 else []
    return _permute_sends(step)


def _permute_sends(step: ReshardStep) -> list[tuple[int, int]]:
    """Return the pairs of a permute within the group of device 0, by comparing both layouts."""
    mesh, before, after = step.before.mesh, step.before, step.after
    if step.group_size > 64:
        return []
    axes = [mesh.axis_names.index(name) for name in step.mesh_axes]
    members = []
    for member in range(step.group_size):
        coordinate, rest = [0] * len(mesh.axis_sizes), member
        for axis in reversed(axes):
            rest, coordinate[axis] = divmod(rest, mesh.axis_sizes[axis])
        members.append(tuple(coordinate))
    return _pair_holders(
        [before.shard_coordinates(member) for member in members],
        [after.shard_coordinates(member) for member in members],
    )


def _pair_holders(
    old: Sequence[tuple[int, ...]], new: Sequence[tuple[int, ...]]
) -> list[tuple[int, int]]:
    """Return (sender, receiver) pairs: a device that has its new shard keeps it, others get one."""
    holders: dict[tuple[int, ...], list[int]] = {}
    for member, (shard, new_shard) in enumerate(zip(old, new, strict=True)):
        if shard != new_shard:
            holders.setdefault(shard, []).append(member)
    receivers = [member for member, shard in enumerate(old) if shard != new[member]]
    return [
        (holders[new[member]].pop(), member) for member in receivers if holders.get(new[member])
    ]
