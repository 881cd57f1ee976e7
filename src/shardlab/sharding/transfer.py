"""Transfers: how an array goes from one mesh to another, device by device.

>>> from shardlab.sharding.layout import layout
>>> trainer = layout("8x6", "fsdp", "fsdp=4")
>>> server = layout("8x6", "None,tensor", Mesh(tensor=2, device_ids=(4, 5)))
>>> moved = transfer(trainer, server)
>>> moved.received_bytes, moved.sent_bytes
({4: 96, 5: 96}, {0: 48, 1: 48, 2: 48, 3: 48})
>>> moved.senders_per_receiver, moved.n_pieces
((4, 4), 8)

The meshes may have other axes, sizes and devices; a device is the same in both if its id is. Each
destination shard is divided along the borders of the source shards. A device copies the pieces that
it holds itself; of the replicas that hold another piece, the one that has sent least sends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

from shardlab._text.units import bytes_text, count_text
from shardlab.errors import LayoutMismatch, TooManyDevices
from shardlab.sharding.layout import Layout
from shardlab.sharding.mesh import Mesh

Interval = tuple[int, int]
Shard = tuple[int, ...]  # the coordinates of a shard: one number for each dimension

_MAX_PIECES = 2**20  # about four seconds


@dataclass(frozen=True)
class Piece:
    """A block of the array that one device sends to another, or copies if it is the same device."""

    sender: int
    receiver: int
    block: tuple[Interval, ...]  # start and stop in each dimension of the array

    @property
    def n_elements(self) -> int:
        return prod(stop - start for start, stop in self.block)


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """What each device sends and receives; made by `transfer`, which checks that all arrives."""

    before: Layout
    after: Layout
    sent_bytes: dict[int, int]  # by device id, without devices that send nothing
    received_bytes: dict[int, int]
    copied_bytes: dict[int, int]  # pieces that a device already holds
    traffic: dict[tuple[int, int], int]  # bytes by sender and receiver
    n_pieces: int
    largest_piece_bytes: int

    @property
    def total_bytes(self) -> int:
        """The bytes that travel between devices."""
        return sum(self.sent_bytes.values())

    @property
    def max_sent_bytes(self) -> int:
        return max(self.sent_bytes.values(), default=0)

    @property
    def max_received_bytes(self) -> int:
        return max(self.received_bytes.values(), default=0)

    @property
    def senders_per_receiver(self) -> tuple[int, int]:
        """The fewest and the most devices from which one device receives."""
        return _fewest_and_most(receiver for _, receiver in self.traffic)

    @property
    def receivers_per_sender(self) -> tuple[int, int]:
        """The fewest and the most devices to which one device sends."""
        return _fewest_and_most(sender for sender, _ in self.traffic)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "total_bytes": self.total_bytes,
            "max_sent_bytes": self.max_sent_bytes,
            "max_received_bytes": self.max_received_bytes,
            "copied_bytes": sum(self.copied_bytes.values()),
            "n_senders": len(self.sent_bytes),
            "n_receivers": len(self.received_bytes),
            "senders_per_receiver": list(self.senders_per_receiver),
            "receivers_per_sender": list(self.receivers_per_sender),
            "n_pieces": self.n_pieces,
            "largest_piece_bytes": self.largest_piece_bytes,
            "every_element_arrives_once": True,  # `transfer` raises otherwise
        }


def _fewest_and_most(devices: Iterator[int]) -> tuple[int, int]:
    counts: dict[int, int] = {}
    for device in devices:
        counts[device] = counts.get(device, 0) + 1
    return min(counts.values(), default=0), max(counts.values(), default=0)


@lru_cache(maxsize=256)  # most tensors of a model have one of a dozen shapes and specs
def transfer(before: Layout, after: Layout) -> Transfer:
    """Return what travels from layout `before` to layout `after`, which may be on another mesh.

    Every destination shard is checked: its pieces are a partition of it, and each sender holds what
    it sends. So every element of every destination shard arrives exactly once.
    """
    _check_same_array(before, after)
    _check_countable(before, after)
    pieces = tuple(transfer_pieces(before, after))
    check_arrival(before, after, pieces)
    sent: dict[int, int] = {}
    received: dict[int, int] = {}
    copied: dict[int, int] = {}
    traffic: dict[tuple[int, int], int] = {}
    largest = 0
    for piece in pieces:
        n_bytes = before.dtype.n_bytes(piece.n_elements)
        if piece.sender == piece.receiver:
            copied[piece.receiver] = copied.get(piece.receiver, 0) + n_bytes
        elif n_bytes:
            sent[piece.sender] = sent.get(piece.sender, 0) + n_bytes
            received[piece.receiver] = received.get(piece.receiver, 0) + n_bytes
            pair = (piece.sender, piece.receiver)
            traffic[pair] = traffic.get(pair, 0) + n_bytes
            largest = max(largest, n_bytes)
    return Transfer(
        before=before,
        after=after,
        sent_bytes=dict(sorted(sent.items())),
        received_bytes=dict(sorted(received.items())),
        copied_bytes=copied,
        traffic=traffic,
        n_pieces=len(pieces),
        largest_piece_bytes=largest,
    )


def transfer_pieces(before: Layout, after: Layout) -> Iterator[Piece]:
    """Yield the pieces of every destination device, in the order of the destination's shards."""
    holders = before.groups()
    source_of = {device: shard for shard, devices in holders.items() for device in devices}
    n_sent = dict.fromkeys(source_of, 0)  # elements, to spread the load over replicas
    for target_shard, receivers in after.groups().items():
        blocks = list(_source_blocks(before, after.shard_index(target_shard)))
        for receiver in receivers:
            held_shard = source_of.get(receiver)
            for source_shard, block in blocks:
                if source_shard == held_shard:
                    sender = receiver
                else:
                    sender = min(holders[source_shard], key=n_sent.__getitem__)
                    n_sent[sender] += prod(stop - start for start, stop in block)
                yield Piece(sender, receiver, block)


def _source_blocks(
    before: Layout, index: tuple[slice, ...]
) -> Iterator[tuple[Shard, tuple[Interval, ...]]]:
    """Yield each source shard that overlaps a block of the array, and the overlap."""
    dims = [
        list(_overlaps(part.start, part.stop, size))
        for part, size in zip(index, before.shard_shape, strict=True)
    ]
    for combination in product(*dims):
        yield tuple(shard for shard, _ in combination), tuple(cut for _, cut in combination)


def _overlaps(start: int, stop: int, shard_size: int) -> Iterator[tuple[int, Interval]]:
    """Yield the source shards along one dimension that overlap start:stop, and the overlaps."""
    if start == stop:  # an empty dimension: one empty overlap, so that the shard still "arrives"
        yield 0, (start, stop)
        return
    for shard in range(start // shard_size, (stop - 1) // shard_size + 1):
        yield shard, (max(start, shard * shard_size), min(stop, (shard + 1) * shard_size))


def check_arrival(before: Layout, after: Layout, pieces: tuple[Piece, ...]) -> None:
    """Raise AssertionError unless every element of every destination shard arrives exactly once.

    Independent of how the pieces were made: it compares index ranges of pieces with those of both
    layouts. The pieces of a device must be the grid of their own borders, and the borders in each
    dimension must join from the start of the device's shard to its end.
    """
    arrived: dict[int, list[tuple[Interval, ...]]] = {device: [] for device in after.mesh.devices}
    source_index = {device: before.index(device) for device in before.mesh.devices}
    for piece in pieces:
        arrived[piece.receiver].append(piece.block)
        for (start, stop), held in zip(piece.block, source_index[piece.sender], strict=True):
            if not held.start <= start <= stop <= held.stop:
                raise AssertionError(f"device {piece.sender} does not hold {piece.block}")
    checked: set[tuple[object, ...]] = set()  # replicas receive the same blocks
    for device, blocks in arrived.items():
        index = after.index(device)
        key = (_index_key(index), tuple(blocks))
        if key not in checked:
            _check_partition(index, blocks)
            checked.add(key)


def _index_key(index: tuple[slice, ...]) -> tuple[Interval, ...]:
    """Return an index as intervals; slices are not hashable before Python 3.12."""
    return tuple((part.start, part.stop) for part in index)


def _check_partition(index: tuple[slice, ...], blocks: list[tuple[Interval, ...]]) -> None:
    borders = [sorted({block[dim] for block in blocks}) for dim in range(len(index))]
    for intervals, part in zip(borders, index, strict=True):
        ends = [part.start, *(stop for _, stop in intervals)]
        starts = [*(start for start, _ in intervals), part.stop]
        if starts != ends:
            raise AssertionError(f"{intervals} do not join to {part}")
    # As many blocks as grid cells, all different, each a grid cell: every cell arrives once.
    if len(blocks) != prod(map(len, borders)) or len(set(blocks)) != len(blocks):
        raise AssertionError(f"the pieces of {index} overlap or leave a gap")


def _check_countable(before: Layout, after: Layout) -> None:
    """Raise if the pieces are so many that listing them would look like a hang."""
    overlaps = zip(before.shape, before.shard_shape, after.shard_shape, strict=True)
    per_device = prod(-(-new // old) + 1 if size else 1 for size, old, new in overlaps)
    n_pieces = min(per_device, before.n_shards) * after.n_devices
    if n_pieces > _MAX_PIECES:
        raise TooManyDevices(
            f"The transfer has about {n_pieces:,} pieces, too many to check one by one.",
            where=f"from {before.spec} on {before.mesh} to {after.spec} on {after.mesh}",
            fix=f"at most {_MAX_PIECES:,} pieces: one replica of the destination, for example.",
        )


def _check_same_array(before: Layout, after: Layout) -> None:
    for field in ("shape", "dtype"):
        first, second = getattr(before, field), getattr(after, field)
        if first != second:
            raise LayoutMismatch(
                f"The layouts have different {field}: {first} and {second}.",
                where=f"from {before.spec} on {before.mesh} to {after.spec} on {after.mesh}",
                fix=f"two layouts of one array, with the same {field}.",
            )
    for end in (before, after):
        if end.spec.unreduced:
            raise LayoutMismatch(
                "Devices of an unreduced layout hold partial sums, not shards of the array.",
                where=f"from {before.spec} on {before.mesh} to {after.spec} on {after.mesh}",
                fix="reduce it first (psum or psum_scatter), then transfer the result.",
            )


def transfer_text(moved: Transfer) -> str:
    """Return what travels, from whom to whom, in lines of text."""
    before, after = moved.before, moved.after
    fewest, most = moved.senders_per_receiver
    senders = f"{most}" if fewest == most else f"{fewest} to {most}"
    lines = [f"From {before.spec} on {before.mesh} to {after.spec} on {after.mesh}"]
    if moved.total_bytes:
        sent, received = bytes_text(moved.max_sent_bytes), bytes_text(moved.max_received_bytes)
        lines += [
            f"  total: {bytes_text(moved.total_bytes)} travel between devices",
            f"  {count_text(len(moved.sent_bytes), 'device')} send, at most {sent} each",
            f"  {count_text(len(moved.received_bytes), 'device')} receive, at most {received} each,"
            f" from {senders} devices",
        ]
    else:
        lines.append("  no communication: each device already holds its shard")
    pieces = count_text(moved.n_pieces, "piece")
    lines.append(f"  checked: every element arrives exactly once ({pieces})")
    return "\n".join(lines)


def separate_mesh(mesh: Mesh, first_id: int) -> Mesh:
    """Return the mesh on devices of its own, numbered from `first_id` on.

    >>> separate_mesh(Mesh(tensor=2), 4).devices
    (4, 5)
    """
    ids = range(first_id, first_id + mesh.n_devices)
    mesh.check_listable()
    return Mesh(mesh.shape, device_ids=ids, axis_types=mesh.axis_types)
