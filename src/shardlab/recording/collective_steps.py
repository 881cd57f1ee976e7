"""One executed collective -> its groups of devices, hops, bytes and time."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from shardlab.collectives.call import CollectiveCall
from shardlab.collectives.ring_steps import count_chunks, count_steps, schedule_of
from shardlab.collectives.wire import REDUCTIONS
from shardlab.errors import UnknownFigure
from shardlab.hardware.collective_time import CollectiveTimer, permutation_pairs
from shardlab.recording.step_records import RecordedCollective, pair_runs
from shardlab.sharding.mesh import MeshSizes

MAX_GROUPS = 64

_ALGORITHMS = {
    "psum": "ring all-reduce",
    "pmax": "ring all-reduce",
    "pmin": "ring all-reduce",
    "all_gather": "ring all-gather",
    "psum_scatter": "ring reduce-scatter",
    "all_to_all": "pairwise all-to-all",
    "ragged_all_to_all": "pairwise all-to-all",
    "ppermute": "point to point",
    "pbroadcast": "chain broadcast",
}


def record_collective(
    call: CollectiveCall, mesh: MeshSizes, timer: CollectiveTimer | None, reads: int, writes: int
) -> RecordedCollective:
    """Return the record of one execution of a collective on a mesh."""
    groups = device_groups(call, mesh)
    pairs = permutation_pairs(call)
    schedule = schedule_of(call.op)
    n_chunks = count_chunks(schedule, call.group_size, prod(call.shape))
    return RecordedCollective(
        # XLA's name; JAX's function is psum_scatter.
        op="reduce_scatter" if call.op == "psum_scatter" else call.op,
        axes=call.mesh_axes,
        groups=tuple(groups[:MAX_GROUPS]),
        n_groups=len(groups),
        group_size=call.group_size,
        payload_bytes=call.payload_bytes,
        wire_bytes=call.wire_bytes,
        seconds=_seconds(call, timer),
        algorithm=_algorithm(call, n_chunks),
        schedule=None if schedule == "pairs" and pairs is None else schedule,
        pairs=pair_runs(pairs or ()),
        n_hops=count_steps(schedule, call.group_size),
        n_chunks=n_chunks,
        chunk_label=_chunk_label(call, n_chunks),
        reads=reads,
        writes=writes,
    )


def device_groups(call: CollectiveCall, mesh: MeshSizes) -> list[tuple[int, ...]]:
    """Return the devices of each group, in the order in which the collective numbers them."""
    names = [name for name, _ in mesh]
    sizes = [size for _, size in mesh]
    devices = np.arange(int(np.prod(sizes, dtype=int))).reshape(sizes)
    participating = [names.index(name) for name in call.mesh_axes if name in names]
    rest = [axis for axis in range(len(names)) if axis not in participating]
    n_members = int(np.prod([sizes[axis] for axis in participating], dtype=int))
    rows = devices.transpose((*rest, *participating)).reshape(-1, n_members)
    index_groups = call.details.get("groups")
    if index_groups is None:
        return [tuple(map(int, row)) for row in rows]
    return [tuple(int(row[i]) for i in group) for row in rows for group in index_groups]


def _algorithm(call: CollectiveCall, n_chunks: int) -> str:
    if call.op in REDUCTIONS and n_chunks == 1 and call.group_size > 1:
        # One element cannot be scattered: its sum passes from device to device, and back around.
        return "reduce, then broadcast along the ring"
    return _ALGORITHMS.get(call.op, "point to point")


def _chunk_label(call: CollectiveCall, n_chunks: int) -> str:
    shape = f"{call.dtype}[{','.join(map(str, call.shape))}]"
    if call.op in ("all_gather", "ppermute", "pbroadcast"):
        return f"one device's {shape}"
    return shape if n_chunks == 1 else f"1/{n_chunks} of {shape}"


def _seconds(call: CollectiveCall, timer: CollectiveTimer | None) -> float | None:
    if timer is None:
        return None
    try:
        return timer.time(call).seconds
    except UnknownFigure:
        return None


def split_arrivals(
    groups: Sequence[Sequence[int]], arrived: Sequence[bool] | np.ndarray[Any, Any]
) -> tuple[list[int], list[int]]:
    """Return the devices that wait in a group that is not complete, and those that it lacks."""
    waiting: list[int] = []
    missing: list[int] = []
    for group in groups:
        here = [device for device in group if arrived[device]]
        if here and len(here) < len(group):
            waiting += here
            missing += [device for device in group if not arrived[device]]
    return waiting, missing
