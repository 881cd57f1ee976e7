"""The steps of one collective: a row per step, a column per device, what it gets from which."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

from shardlab._text.units import bytes_text, count_text
from shardlab.collectives.call import CollectiveCall
from shardlab.collectives.ring_steps import RingStep, chunk_fraction, ring_steps
from shardlab.collectives.wire import wire_formula
from shardlab.hardware.collective_time import permutation_pairs
from shardlab.render.picture import Cell, Grid, GridLimits, Picture, visible_positions
from shardlab.render.svg import picture_svg
from shardlab.render.terminal import DEFAULT_WIDTH, picture_text
from shardlab.sharding.mesh import MeshSizes
from shardlab.tracing.call_groups import operand_text
from shardlab.tracing.collective_style import op_text

_GAP = -1
_COLUMN_LIMITS = (16, 8, 6, 4, 3)  # tried one after the other until the text is narrow enough


def steps_text(call: CollectiveCall, mesh: MeshSizes, width: int = DEFAULT_WIDTH) -> str:
    """Return the steps of a call as plain text."""
    text = ""
    # Fewer columns make a narrower picture; the omitted devices are shown as dots.
    for columns in _COLUMN_LIMITS:
        text = picture_text(steps_picture(call, mesh, GridLimits(rows=16, columns=columns)), width)
        if max(map(len, text.splitlines())) <= width:
            break
    return text


def steps_svg(call: CollectiveCall, mesh: MeshSizes) -> str:
    """Return the steps of a call as an SVG element."""
    return picture_svg(steps_picture(call, mesh, GridLimits(rows=16, columns=8)))


def steps_picture(call: CollectiveCall, mesh: MeshSizes, limits: GridLimits) -> Picture:
    """Return the picture of the communication in one group."""
    n = call.group_size
    steps = ring_steps(call.op, n, permutation_pairs(call))
    title = f"{op_text(call.op)} over {', '.join(call.mesh_axes)}: {operand_text(call)}"
    facts = _exchange_facts(call, mesh, steps)
    grid = _steps_grid(call, mesh, steps, limits)
    step_texts = [
        f"step {number + 1}: {', '.join(map(str, step[:16]))}"
        for number, step in enumerate(steps[:16])
    ]
    return Picture(
        title=title,
        facts=facts,
        grids=(grid,),
        alternative=f"{title}; {'; '.join((*facts, *step_texts))}",
    )


def _exchange_facts(
    call: CollectiveCall, mesh: MeshSizes, steps: Sequence[RingStep]
) -> tuple[str, ...]:
    if not steps:
        return ("a single device does not communicate",)
    chunk_bytes = ceil(chunk_fraction(call.op, call.group_size) * call.payload_bytes)
    formula = wire_formula(call.op)
    n_groups = prod(size for _, size in mesh) // call.group_size
    groups = f"; one of {n_groups:,} concurrent groups is drawn" if n_groups > 1 else ""
    return (
        f"{count_text(call.group_size, 'device')} communicate in {count_text(len(steps), 'step')} "
        f"of {bytes_text(chunk_bytes)}{groups}",
        f"each device sends {bytes_text(call.wire_bytes)}: {formula}, "
        f"p = {bytes_text(call.payload_bytes)}, g = {call.group_size}",
    )


def _steps_grid(
    call: CollectiveCall, mesh: MeshSizes, steps: Sequence[RingStep], limits: GridLimits
) -> Grid:
    rows, columns = (
        visible_positions(len(steps) + 1, limits.rows),
        visible_positions(call.group_size, limits.columns),
    )
    # A device receives at most one message per step.
    received = [{send.receiver: send for send in step} for step in steps]

    def make_cell(row: int, column: int) -> Cell:
        if _GAP in (row, column):
            is_corner = row == _GAP and column == _GAP
            return Cell(("⋱" if is_corner else "⋮" if row == _GAP else "⋯",), None)
        if row == 0:
            return _start_cell(call, column)
        send = received[row - 1].get(column)
        if send is None:
            return Cell(("nothing",), None)
        color = send.sender if send.chunk is None else send.chunk
        verb = "adds" if send.is_added else "gets"
        chunk = "all" if send.chunk is None else f"#{send.chunk}"
        hover = f"step {row}: {column} {verb} {chunk} from {send.sender}"
        return Cell((f"{verb} {chunk}", f"from {send.sender}"), color, hover)

    return Grid(
        title="What each device receives, and from which",
        caption=_steps_caption(call, _GAP in (*rows, *columns)),
        row_labels=tuple(
            "⋮" if position == _GAP else f"step {position}" if position else "start"
            for position in rows
        ),
        column_labels=tuple(
            "⋯" if position == _GAP else _device_label(call, mesh, position) for position in columns
        ),
        cells=tuple(tuple(make_cell(row, column) for column in columns) for row in rows),
        is_summary=_GAP in (*rows, *columns),
        is_block=False,
    )


def _start_cell(call: CollectiveCall, device: int) -> Cell:
    if call.op == "all_gather":
        return Cell((f"has #{device}",), device, f"{device} starts with #{device}")
    if chunk_fraction(call.op, call.group_size) == 1:
        return Cell(("has its own",), device, f"{device} starts with its own")
    chunks = f"#0-#{call.group_size - 1}" if call.group_size > 1 else "#0"
    return Cell((f"has {chunks}",), None)


def _device_label(call: CollectiveCall, mesh: MeshSizes, index: int) -> str:
    """Return the coordinates of a device of the group; the last axis varies fastest."""
    sizes, number, coordinates = dict(mesh), index, list[str]()
    if call.group_size != prod(sizes.get(name, 1) for name in call.mesh_axes):
        return (
            f"{index} of the group"  # axis_index_groups, whose members have no regular coordinates
        )
    # ppermute numbers devices in mesh order; all other collectives in the order of their axes.
    names = [name for name in sizes if name in call.mesh_axes]
    for name in reversed(names if call.op == "ppermute" else call.mesh_axes):
        index, step = divmod(index, sizes.get(name, 1))
        coordinates.append(f"{name}={step}")
    label = ",".join(reversed(coordinates))
    # Senders are named by their index, which several coordinates do not show.
    return label if len(call.mesh_axes) == 1 else f"{number}: {label}"


def _steps_caption(call: CollectiveCall, is_abbreviated: bool) -> str:
    endings = {
        "all_gather": "at the end each device has every chunk",
        "psum_scatter": "at the end device i has the sum of chunk i",
        "all_to_all": "at the end device i has chunk i of every device",
    }
    exceptions = {
        "ppermute": "a device that receives nothing gets zeros",
        "pbroadcast": "at the end each device has the same value",
    }
    ending = {**endings, **exceptions}.get(
        call.op, "first chunks are summed, then each sum is sent to all"
    )
    dots = "; dots stand for omitted rows or columns" if is_abbreviated else ""
    return f"color: the chunk; {ending}{dots}"
