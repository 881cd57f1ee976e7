"""The weights of a model from one mesh to another: from a trainer to inference servers in RL.

>>> moved = transfer_weights("llama3-8b", "fsdp=8", "tensor=4", strategy="fsdp",
...                          to_strategy="tensor", is_separate=True)
>>> moved.n_tensors, moved.total_bytes == moved.destination_bytes * 4
(291, True)

Tensors of one shape and the same specs are one kind: its transfer is computed and checked once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardlab.errors import LayoutMismatch
from shardlab.hardware.chips import Hardware, parse_hardware
from shardlab.planner.configs.run_config import strategy_of_mesh
from shardlab.planner.make_plan import plan
from shardlab.planner.plan import Plan, PlanRow
from shardlab.planner.weight_transfer_time import TransferTime, estimate_transfer_time
from shardlab.sharding.dtype import parse_dtype
from shardlab.sharding.layout import layout
from shardlab.sharding.mesh import Mesh, parse_mesh
from shardlab.sharding.transfer import Transfer, separate_mesh, transfer


@dataclass(frozen=True, kw_only=True)
class TensorTransfer:
    """Tensors of one row of the plan: `n_tensors` equal transfers."""

    path: str
    n_tensors: int
    transfer: Transfer

    @property
    def total_bytes(self) -> int:
        return self.n_tensors * self.transfer.total_bytes

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        before, after = self.transfer.before, self.transfer.after
        return {
            "path": self.path,
            "n_tensors": self.n_tensors,
            "shape": list(before.shape),
            "dtype": before.dtype.name,
            "from": str(before.spec),
            "to": str(after.spec),
            "all_tensors_bytes": self.total_bytes,
            "one_tensor": self.transfer.to_json(),
        }


@dataclass(frozen=True, kw_only=True)
class ChunkedMemory:
    """Peak memory of the busiest device: the shards it holds, and what is in flight.

    In flight is what a device packs to send plus what it receives before it is in place. Chunks
    limit each of the two to `chunk_bytes`; without chunks all tensors are in flight at once.
    """

    resident_bytes: int
    unchunked_bytes: int
    limit_bytes: int | None = None
    chunk_bytes: int | None = None  # None without a limit, or if nothing is left below it
    n_rounds: int = 1

    @property
    def chunked_bytes(self) -> int | None:
        """The peak with chunks, an upper bound."""
        if self.chunk_bytes is None:
            return None
        return min(self.unchunked_bytes, self.resident_bytes + 2 * self.chunk_bytes)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "resident_bytes": self.resident_bytes,
            "unchunked_bytes": self.unchunked_bytes,
            "limit_bytes": self.limit_bytes,
            "chunk_bytes": self.chunk_bytes,
            "chunked_bytes": self.chunked_bytes,
            "n_rounds": self.n_rounds,
        }


@dataclass(frozen=True, kw_only=True)
class WeightTransfer:
    """What every device sends, receives and stores while all weights go to another mesh."""

    model: str
    source_mesh: Mesh
    target_mesh: Mesh
    tensors: tuple[TensorTransfer, ...]  # most bytes first
    sent_bytes: dict[int, int]
    received_bytes: dict[int, int]
    source_bytes: int  # of all weights on one device of the source mesh
    destination_bytes: int
    memory: ChunkedMemory
    time: TransferTime | None = None

    @property
    def n_tensors(self) -> int:
        return sum(tensor.n_tensors for tensor in self.tensors)

    @property
    def total_bytes(self) -> int:
        return sum(self.sent_bytes.values())

    @property
    def n_shared_devices(self) -> int:
        return len(set(self.source_mesh.devices) & set(self.target_mesh.devices))

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "model": self.model,
            "mesh": self.source_mesh.to_json(),
            "to_mesh": self.target_mesh.to_json(),
            "n_shared_devices": self.n_shared_devices,
            "n_tensors": self.n_tensors,
            "total_bytes": self.total_bytes,
            "max_sent_bytes": max(self.sent_bytes.values(), default=0),
            "max_received_bytes": max(self.received_bytes.values(), default=0),
            "n_senders": len(self.sent_bytes),
            "n_receivers": len(self.received_bytes),
            "source_bytes_per_device": self.source_bytes,
            "destination_bytes_per_device": self.destination_bytes,
            "every_element_arrives_once": True,  # `transfer` raises otherwise
            "memory": self.memory.to_json(),
            "time": None if self.time is None else self.time.to_json(),
            "tensors": [tensor.to_json() for tensor in self.tensors],
        }


def transfer_weights(
    model: Any,
    mesh: Any,
    to_mesh: Any,
    *,
    strategy: str | None = None,
    to_strategy: str | None = None,
    rules: Any = None,
    to_rules: Any = None,
    dtype: str | None = None,
    is_separate: bool = False,
    memory_limit: int | None = None,
    hardware: str | Path | Hardware | None = None,
    stack: str | None = None,
) -> WeightTransfer:
    """Return the transfer of a model's weights from one mesh and its specs to another.

    Devices with the same id are the same device: both meshes start at device 0, unless
    `is_separate` puts the destination after the devices of the source. `dtype` is the dtype that is
    sent; the default is that of the model. `memory_limit` is in bytes per device. Without strategy
    and rules the names of the mesh axes decide, so `fsdp=64` is sharded with fsdp.
    """
    # The names of the mesh axes are the strategy if nothing else says how weights are sharded:
    # replicated weights would need no transfer, and nobody trains them so by intention.
    if strategy is None and rules is None:
        strategy = strategy_of_mesh(parse_mesh(mesh))
    if to_strategy is None and to_rules is None:
        to_strategy = strategy_of_mesh(parse_mesh(to_mesh))
    source = plan(model, mesh, strategy=strategy, rules=rules, stack=stack)
    target = plan(model, to_mesh, strategy=to_strategy, rules=to_rules, stack=stack)
    source_mesh, target_mesh = Mesh(source.mesh), Mesh(target.mesh)
    if is_separate:
        target_mesh = separate_mesh(target_mesh, source_mesh.n_devices)
    tensors = [
        _transfer_row(old, new, (source_mesh, target_mesh), dtype)
        for old, new in _matching_rows(source, target)
    ]
    sent = _sum_by_device((t.n_tensors, t.transfer.sent_bytes) for t in tensors)
    received = _sum_by_device((t.n_tensors, t.transfer.received_bytes) for t in tensors)
    source_bytes = sum(t.n_tensors * t.transfer.before.bytes_per_device for t in tensors)
    target_bytes = sum(t.n_tensors * t.transfer.after.bytes_per_device for t in tensors)
    chip = None if hardware is None else parse_hardware(hardware)
    resident = dict.fromkeys(source_mesh.devices, source_bytes)
    for device in target_mesh.devices:
        resident[device] = resident.get(device, 0) + target_bytes
    return WeightTransfer(
        model=source.model,
        source_mesh=source_mesh,
        target_mesh=target_mesh,
        tensors=tuple(sorted(tensors, key=lambda t: -t.total_bytes)),
        sent_bytes=sent,
        received_bytes=received,
        source_bytes=source_bytes,
        destination_bytes=target_bytes,
        memory=plan_chunks(resident, sent, received, memory_limit),
        time=None
        if chip is None
        else estimate_transfer_time(_sum_traffic(tensors), sent, received, chip, is_separate),
    )


def _matching_rows(source: Plan, target: Plan) -> list[tuple[PlanRow, PlanRow]]:
    """Return the rows of both plans in pairs; raises if they do not list the same tensors."""
    old, new = (
        [(row.path, row.numbers, row.n_tensors) for row in p.rows] for p in (source, target)
    )
    if old != new:
        different = sorted({str(path) for path, *_ in set(old) ^ set(new)})
        raise LayoutMismatch(
            f"The two plans group the tensors of {source.model!r:.80} differently.",
            where=f"rows such as {', '.join(different[:3])}",
            fix="stack the same tensors on both sides (--stack), or rules for the same groups.",
        )
    return list(zip(source.rows, target.rows, strict=True))


def _transfer_row(
    old: PlanRow, new: PlanRow, meshes: tuple[Mesh, Mesh], dtype: str | None
) -> TensorTransfer:
    sent_dtype = parse_dtype(dtype or old.arrays[0].dtype)
    ends = [
        layout(row.arrays[0].shape, row.arrays[0].spec, mesh, sent_dtype)
        for row, mesh in zip((old, new), meshes, strict=True)
    ]
    return TensorTransfer(path=old.path, n_tensors=old.n_tensors, transfer=transfer(*ends))


def _sum_by_device(counted: Any) -> dict[int, int]:
    totals: dict[int, int] = {}
    for n_tensors, by_device in counted:
        for device, n_bytes in by_device.items():
            totals[device] = totals.get(device, 0) + n_tensors * n_bytes
    return dict(sorted(totals.items()))


def _sum_traffic(tensors: Sequence[TensorTransfer]) -> dict[tuple[int, int], int]:
    totals: dict[tuple[int, int], int] = {}
    for tensor in tensors:
        for pair, n_bytes in tensor.transfer.traffic.items():
            totals[pair] = totals.get(pair, 0) + tensor.n_tensors * n_bytes
    return totals


def plan_chunks(
    resident: dict[int, int], sent: dict[int, int], received: dict[int, int], limit: int | None
) -> ChunkedMemory:
    """Return peak memory with and without chunks, and the largest chunk that stays below a limit.

    >>> memory = plan_chunks({0: 100, 1: 60}, {0: 50}, {1: 50}, 120)
    >>> memory.unchunked_bytes, memory.chunk_bytes, memory.n_rounds
    (150, 10, 5)
    """
    peaks = {d: n + sent.get(d, 0) + received.get(d, 0) for d, n in resident.items()}
    resident_bytes, unchunked = max(resident.values()), max(peaks.values())
    busiest = max((*sent.values(), *received.values()), default=0)
    chunk = None
    if limit is not None and resident_bytes < limit and busiest:
        # Half of what is left for packing, half for receiving.
        chunk = min(busiest, (limit - resident_bytes) // 2)
    return ChunkedMemory(
        resident_bytes=resident_bytes,
        unchunked_bytes=unchunked,
        limit_bytes=limit,
        chunk_bytes=chunk or None,
        n_rounds=-(-busiest // chunk) if chunk else 1,
    )
