"""A weight transfer as a sheet for terminal and HTML, and the transfer of one array as text."""

from __future__ import annotations

from shardlab._text.units import bytes_text, count_text, seconds_text, share_text
from shardlab.planner.weight_transfer import ChunkedMemory, TensorTransfer, WeightTransfer
from shardlab.planner.weight_transfer_time import TransferTime
from shardlab.render.sheet import Column, Row, Section, Sheet, Table

_MAX_ROWS = 12


def weight_transfer_sheet(moved: WeightTransfer, *, show_all: bool = False) -> Sheet:
    """Return bytes, memory, time, and the tensors with the most bytes."""
    title = f"{moved.model}: weights from {moved.source_mesh} to {moved.target_mesh}"
    shared = moved.n_shared_devices
    devices = f"{count_text(shared, 'device')} in both meshes" if shared else "separate devices"
    sections = [
        Section("Bytes", lines=_byte_lines(moved)),
        Section("Peak memory per device", lines=_memory_lines(moved.memory)),
    ]
    if moved.time is not None:
        sections.append(Section("Time", lines=_time_lines(moved.time)))
    sections.append(_tensor_section(moved, show_all))
    return Sheet(title, (devices,), tuple(sections))


def _byte_lines(moved: WeightTransfer) -> tuple[str, ...]:
    sent, received = moved.sent_bytes, moved.received_bytes
    n_pieces = sum(tensor.n_tensors * tensor.transfer.n_pieces for tensor in moved.tensors)
    most_sent, most_received = (max(n.values(), default=0) for n in (sent, received))
    lines = [
        f"total: {bytes_text(moved.total_bytes)} travel between devices",
        f"{count_text(len(sent), 'device')} send, at most {bytes_text(most_sent)} each",
        f"{count_text(len(received), 'device')} receive, at most {bytes_text(most_received)} each",
        f"checked: every element of every destination shard arrives exactly once "
        f"({n_pieces:,} pieces of {moved.n_tensors:,} tensors)",
    ]
    return tuple(lines)


def _memory_lines(memory: ChunkedMemory) -> tuple[str, ...]:
    lines = [
        f"shards: {bytes_text(memory.resident_bytes)} (a device of both meshes holds both)",
        f"all tensors at once: {bytes_text(memory.unchunked_bytes)} "
        "(shards + packed to send + received)",
    ]
    if memory.limit_bytes is not None:
        limit = bytes_text(memory.limit_bytes)
        if memory.chunk_bytes is None or memory.chunked_bytes is None:
            missing = bytes_text(memory.resident_bytes - memory.limit_bytes)
            lines.append(f"no chunk size stays below {limit}: the shards alone need {missing} more")
        else:
            lines.append(
                f"in chunks of {bytes_text(memory.chunk_bytes)}: at most "
                f"{bytes_text(memory.chunked_bytes)}, within the limit of {limit}, in "
                f"{count_text(memory.n_rounds, 'round')}"
            )
    return tuple(lines)


def _time_lines(time: TransferTime) -> tuple[str, ...]:
    return (
        f"about {seconds_text(time.seconds)} on {time.hardware}: {time.formula}",
        *(f"{figure.name} = {figure.value:.3g} ({figure.source})" for figure in time.figures),
        "at peak bandwidth, without protocol overhead",
    )


def _tensor_section(moved: WeightTransfer, show_all: bool) -> Section:
    shown = moved.tensors if show_all else moved.tensors[:_MAX_ROWS]
    columns = (
        Column(head="tensor", can_truncate=True, is_code=True),
        Column(head="count", is_number=True),
        Column(head="from", is_code=True, drop=2),
        Column(head="to", is_code=True, drop=1),
        Column(head="bytes", is_number=True),
        Column(head="share", is_number=True),
        Column(head="senders", is_number=True, drop=3),
    )
    rows = tuple(Row(cells=_tensor_cells(tensor, moved.total_bytes)) for tensor in shown)
    hidden = len(moved.tensors) - len(shown)
    more = (f"and {count_text(hidden, 'smaller row')}; --all lists them",) if hidden else ()
    return Section("Tensors, most bytes first", Table(columns, rows), more)


def _tensor_cells(tensor: TensorTransfer, total_bytes: int) -> tuple[str, ...]:
    before, after = tensor.transfer.before, tensor.transfer.after
    fewest, most = tensor.transfer.senders_per_receiver
    return (
        tensor.path,
        f"{tensor.n_tensors:,}",
        str(before.spec),
        str(after.spec),
        bytes_text(tensor.total_bytes),
        share_text(tensor.total_bytes, total_bytes) if total_bytes else "",
        f"{most}" if fewest == most else f"{fewest} to {most}",
    )
