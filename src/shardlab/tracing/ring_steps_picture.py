"""The steps of one call: a row for each step, a column for each device, what it gets from whom."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

from shardlab._text.units import bytes_text, count_text
from shardlab.collectives.call import CollectiveCall
from shardlab.collectives.ring_steps import Step, chunk_share, ring_steps
from shardlab.collectives.wire import wire_formula
from shardlab.hardware.collective_time import permutation_pairs
from shardlab.render.picture import Cell, Grid, GridLimits, Picture, visible_positions
from shardlab.render.svg import picture_svg
from shardlab.render.terminal import DEFAULT_WIDTH, picture_text
from shardlab.sharding.mesh import MeshSizes
from shardlab.tracing.call_groups import operand_text
from shardlab.tracing.collective_style import op_text

_GAP = -1
_COLUMNS = (16, 8, 6, 4, 3)  # tried in turn until the text is narrow enough


def steps_text(call: CollectiveCall, mesh: MeshSizes, width: int = DEFAULT_WIDTH) -> str:
    """Return the steps of a call as plain text."""
    text = ""
    for columns in _COLUMNS:
        text = picture_text(steps_picture(call, mesh, GridLimits(rows=16, columns=columns)), width)
        if max(map(len, text.splitlines())) <= width:
            break
    return text


def steps_svg(call: CollectiveCall, mesh: MeshSizes) -> str:
    """Return the steps of a call as an SVG element."""
    return picture_svg(steps_picture(call, mesh, GridLimits(rows=16, columns=8)))


def steps_picture(call: CollectiveCall, mesh: MeshSizes, room: GridLimits) -> Picture:
    """Return the picture of the exchange in one group."""
    n = call.group_size
    steps = ring_steps(call.op, n, permutation_pairs(call))
    title = f"{op_text(call.op)} over {', '.join(call.mesh_axes)}: {operand_text(call)}"
    facts = _facts(call, mesh, steps)
    grid = _grid(call, mesh, steps, room)
    said = [
        f"step {at + 1}: {', '.join(map(str, step[:16]))}" for at, step in enumerate(steps[:16])
    ]
    return Picture(
        title=title,
        facts=facts,
        grids=(grid,),
        alternative=f"{title}; {'; '.join((*facts, *said))}",
    )


def _facts(call: CollectiveCall, mesh: MeshSizes, steps: Sequence[Step]) -> tuple[str, ...]:
    if not steps:
        return ("a device alone has nothing to exchange",)
    part = ceil(chunk_share(call.op, call.group_size) * call.payload_bytes)
    formula = wire_formula(call.op)
    n_groups = prod(size for _, size in mesh) // call.group_size
    groups = f"; {n_groups:,} groups do so at once, one is drawn" if n_groups > 1 else ""
    return (
        f"{count_text(call.group_size, 'device')} exchange in {count_text(len(steps), 'step')} "
        f"of {bytes_text(part)}{groups}",
        f"each device sends {bytes_text(call.wire_bytes)}: {formula}, "
        f"p = {bytes_text(call.payload_bytes)}, g = {call.group_size}",
    )


def _grid(call: CollectiveCall, mesh: MeshSizes, steps: Sequence[Step], room: GridLimits) -> Grid:
    rows, columns = (
        visible_positions(len(steps) + 1, room.rows),
        visible_positions(call.group_size, room.columns),
    )
    got = [{send.receiver: send for send in step} for step in steps]

    def cell(row: int, column: int) -> Cell:
        if _GAP in (row, column):
            both = row == _GAP and column == _GAP
            return Cell(("⋱" if both else "⋮" if row == _GAP else "⋯",), None)
        if row == 0:
            return _start(call, column)
        send = got[row - 1].get(column)
        if send is None:
            return Cell(("nothing",), None)
        part = send.sender if send.part is None else send.part
        verb = "adds" if send.is_added else "gets"
        what = "all" if send.part is None else f"#{send.part}"
        hover = f"step {row}: {column} {verb} {what} from {send.sender}"
        return Cell((f"{verb} {what}", f"from {send.sender}"), part, hover)

    return Grid(
        title="Who gets what from whom",
        caption=_caption(call, _GAP in (*rows, *columns)),
        row_labels=tuple("⋮" if at == _GAP else f"step {at}" if at else "start" for at in rows),
        column_labels=tuple("⋯" if at == _GAP else _place(call, mesh, at) for at in columns),
        cells=tuple(tuple(cell(row, column) for column in columns) for row in rows),
        is_summary=_GAP in (*rows, *columns),
        is_block=False,
    )


def _start(call: CollectiveCall, place: int) -> Cell:
    if call.op == "all_gather":
        return Cell((f"has #{place}",), place, f"{place} starts with #{place}")
    if chunk_share(call.op, call.group_size) == 1:
        return Cell(("has its own",), place, f"{place} starts with its own")
    parts = f"#0-#{call.group_size - 1}" if call.group_size > 1 else "#0"
    return Cell((f"has {parts}",), None)


def _place(call: CollectiveCall, mesh: MeshSizes, at: int) -> str:
    """Return where along the mesh axes one of the group stands; the last axis runs fastest."""
    sizes, number, steps = dict(mesh), at, list[str]()
    if call.group_size != prod(sizes.get(name, 1) for name in call.mesh_axes):
        return f"{at} of the group"  # axis_index_groups: any devices along the axis
    # ppermute numbers devices in mesh order however its axes are written, the others as written.
    names = [name for name in sizes if name in call.mesh_axes]
    for name in reversed(names if call.op == "ppermute" else call.mesh_axes):
        at, step = divmod(at, sizes.get(name, 1))
        steps.append(f"{name}={step}")
    place = ",".join(reversed(steps))
    # Along several axes the number, which senders are called by, is not to be seen in the place.
    return place if len(call.mesh_axes) == 1 else f"{number}: {place}"


def _caption(call: CollectiveCall, is_short: bool) -> str:
    endings = {
        "all_gather": "at the end each device has every part",
        "psum_scatter": "at the end device i has the sum of part i",
        "all_to_all": "at the end device i has part i of every device",
    }
    words = {
        "ppermute": "who gets nothing has zeros",
        "pbroadcast": "at the end each device has the same",
    }
    ending = {**endings, **words}.get(call.op, "first the sums of parts, then each sum to all")
    dots = "; dots stand for all between" if is_short else ""
    return f"colour: the part; {ending}{dots}"
