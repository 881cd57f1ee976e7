"""The steps of one collective: a row per step, a column per device, what it gets from which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, prod

from shardlab._text.units import bytes_text, count_text
from shardlab.collectives.call import CollectiveCall
from shardlab.collectives.ring_steps import RingStep, Send, chunk_fraction, ring_steps
from shardlab.collectives.wire import REDUCTIONS, wire_formula
from shardlab.hardware.collective_time import permutation_pairs
from shardlab.render.picture import (
    GAP,
    NEUTRAL,
    Arrow,
    Cell,
    Grid,
    GridLimits,
    Picture,
    Texture,
    gap_cell,
    visible_positions,
)
from shardlab.render.svg import picture_svg
from shardlab.render.terminal import DEFAULT_WIDTH, picture_text
from shardlab.sharding.mesh import MeshSizes
from shardlab.tracing.call_groups import operand_text
from shardlab.tracing.collective_style import call_keys, group_axes, member_paint, op_text

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
    """Return the steps of a call as an SVG element, with an arrow for each message."""
    return picture_svg(steps_picture(call, mesh, GridLimits(rows=16, columns=8)))


def steps_picture(call: CollectiveCall, mesh: MeshSizes, limits: GridLimits) -> Picture:
    """Return the picture of the communication in one group."""
    n = call.group_size
    steps = ring_steps(call.op, n, permutation_pairs(call), prod(call.shape))
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
        keys=call_keys(mesh, call.mesh_axes),
        is_code_title=False,
    )


def _exchange_facts(
    call: CollectiveCall, mesh: MeshSizes, steps: Sequence[RingStep]
) -> tuple[str, ...]:
    if not steps:
        return ("a single device does not communicate",)
    n_elements = prod(call.shape)
    chunk_bytes = ceil(chunk_fraction(call.op, call.group_size, n_elements) * call.payload_bytes)
    # Fewer elements than devices: in each step some devices send nothing.
    is_uneven = len(steps[0]) < call.group_size and call.op in REDUCTIONS
    subject = "a device sends on average" if is_uneven else "each device sends"
    formula = wire_formula(call.op)
    n_groups = prod(size for _, size in mesh) // call.group_size
    groups = f"; one of {n_groups:,} concurrent groups is drawn" if n_groups > 1 else ""
    return (
        f"{count_text(call.group_size, 'device')} communicate in {count_text(len(steps), 'step')} "
        f"of {bytes_text(chunk_bytes)}{groups}",
        f"{subject} {bytes_text(call.wire_bytes)}: {formula}, "
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
    # The chunks that are added in the last of these steps are complete, those before partial.
    n_adding = sum(any(send.is_added for send in step) for step in steps)

    def cell_at(row: int, column: int) -> Cell:
        if GAP in (row, column):
            return gap_cell(row, column)
        if row == 0:
            return _start_cell(call, mesh, column, is_summed=n_adding > 0)
        send = received[row - 1].get(column)
        if send is None:
            return Cell(("nothing",), None)
        paint = member_paint(call, mesh, send.sender if send.chunk is None else send.chunk)
        if send.is_added and row < n_adding:
            paint = replace(paint, texture="partial")
        verb = "adds" if send.is_added else "gets"
        chunk = "all" if send.chunk is None else f"#{send.chunk}"
        hover = f"step {row}: {column} {verb} {chunk} from {send.sender}"
        return Cell((f"{verb} {chunk}", f"from {send.sender}"), paint, hover)

    return Grid(
        title="What each device receives, and from which",
        row_axis="time",
        column_axis=" × ".join(group_axes(call, mesh)) or ", ".join(call.mesh_axes),
        caption=_steps_caption(call, GAP in (*rows, *columns)),
        row_labels=tuple(
            "⋮" if position == GAP else f"step {position}" if position else "start"
            for position in rows
        ),
        column_labels=tuple(
            "⋯" if position == GAP else _device_label(call, mesh, position) for position in columns
        ),
        cells=tuple(tuple(cell_at(row, column) for column in columns) for row in rows),
        arrows=tuple(_step_arrows(call, mesh, received, rows, columns)),
        is_summary=GAP in (*rows, *columns),
    )


def _step_arrows(
    call: CollectiveCall,
    mesh: MeshSizes,
    received: Sequence[Mapping[int, Send]],
    rows: Sequence[int],
    columns: Sequence[int],
) -> Iterator[Arrow]:
    """Yield an arrow from the row above for each message whose sender and receiver are drawn."""
    for index, row in enumerate(rows):
        if row <= 0 or rows[index - 1] == GAP:
            continue
        for receiver, send in received[row - 1].items():
            if receiver not in columns or send.sender not in columns:
                continue
            chunk = send.sender if send.chunk is None else send.chunk
            yield Arrow(
                start=(index - 1, columns.index(send.sender)),
                end=(index, columns.index(receiver)),
                color=member_paint(call, mesh, chunk).colors[0],
            )


def _start_cell(call: CollectiveCall, mesh: MeshSizes, device: int, *, is_summed: bool) -> Cell:
    paint = member_paint(call, mesh, device)
    if call.op == "all_gather":
        return Cell((f"has #{device}",), paint, f"{device} starts with #{device}")
    n_chunks = chunk_fraction(call.op, call.group_size, prod(call.shape)).denominator
    if n_chunks == 1 and not is_summed:
        return Cell(("has its own",), paint, f"{device} starts with its own")
    chunks = f"#0-#{n_chunks - 1}" if n_chunks > 1 else "#0"
    texture: Texture = "partial" if is_summed else ""
    hover = f"{device} starts with chunks {chunks} of its own"
    return Cell((f"has {chunks}",), replace(NEUTRAL, texture=texture), hover)


def _device_label(call: CollectiveCall, mesh: MeshSizes, index: int) -> str:
    """Return the coordinates of a device of the group; the last axis varies fastest."""
    sizes, number, coordinates = dict(mesh), index, list[str]()
    if call.group_size != prod(sizes.get(name, 1) for name in call.mesh_axes):
        return (
            f"{index} of the group"  # axis_index_groups, whose members have no regular coordinates
        )
    for name in reversed(group_axes(call, mesh)):
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
