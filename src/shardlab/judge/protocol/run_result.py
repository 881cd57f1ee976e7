"""What a case's run gave, taken out of frames that nobody vouches for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy.typing as npt

from shardlab.collectives.wire import wire_bytes
from shardlab.errors import LabError
from shardlab.judge.protocol.values import ArrayLeaf, array_from, unpack
from shardlab.sandbox.frame import Frame, InvalidFrame
from shardlab.sharding.dtype import parse_dtype

Ranges = tuple[tuple[int, int], ...]
_MAX_SIZE = 1 << 31
_MAX_COUNT = 1 << 62  # of bytes, elements or calls: what is added up and told stays a number
_MAX_NAME = 40
_UNREADABLE = (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError)


@dataclass(frozen=True)
class Shard:
    """What one device holds of an output."""

    device: int
    ranges: Ranges
    values: npt.NDArray[Any]


@dataclass(frozen=True)
class Output:
    """One array of a result, as it lies on the devices."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class Seen:
    """One run of an exported program."""

    outputs: tuple[Output, ...]
    calls: tuple[Mapping[str, Any], ...]
    peak_bytes: int
    has_shard_map: bool
    is_checked: bool = True  # no shard_map has check_vma=False
    eager_bytes: int = 0  # the largest array that is made whole on one device, outside of a jit


def read_seen(answer: Frame, devices: Collection[int]) -> Seen:
    """Return what the devices of a mesh hold and sent; raise `InvalidFrame` where it is not told."""
    try:
        return _read(answer, frozenset(devices))
    except (*_UNREADABLE, LabError) as error:
        raise InvalidFrame("the answer lacks what was asked for") from error


def _read(answer: Frame, devices: Set[int]) -> Seen:
    buffers = iter(answer.buffers)
    header = answer.header
    return Seen(
        tuple(_output(told, buffers, devices) for told in header["outputs"]),
        tuple(_call(call, len(devices)) for call in header["calls"]),
        _counted(header["peak_bytes"]),
        bool(header["has_shard_map"]),
    )


def _output(told: Mapping[str, Any], buffers: Iterator[bytes], devices: Set[int]) -> Output:
    shape, dtype = tuple(map(int, told["shape"])), str(told["dtype"])
    shards: list[Shard] = []
    for each in told["shards"]:
        ranges = tuple((int(start), int(stop)) for start, stop in each["ranges"])
        _check_within(ranges, shape)
        if "same_as" in each:  # equal to an earlier one, which has the numbers
            values = shards[int(each["same_as"])].values
            if shards[int(each["same_as"])].ranges != ranges:
                raise ValueError("two places cannot be the same piece")
        else:
            piece = ArrayLeaf(0, tuple(stop - start for start, stop in ranges), dtype)
            values = array_from(piece, next(buffers, b""))
        shards.append(Shard(int(each["device"]), ranges, values))
    _check_devices(shards, devices)
    return Output(str(told["path"]), shape, dtype, tuple(shards))


def _check_devices(shards: Sequence[Shard], devices: Set[int]) -> None:
    """Ask that an output is once on every device, or on one alone: there is nothing between."""
    held = {shard.device for shard in shards}
    if len(held) < len(shards) or not (held == devices or (len(held) == 1 and held < devices)):
        raise ValueError("an output is on other devices than those of the mesh, or twice on one")


def _check_within(ranges: Ranges, shape: tuple[int, ...]) -> None:
    for (start, stop), size in zip(ranges, shape, strict=True):
        if not 0 <= start <= stop <= size <= _MAX_SIZE:
            raise ValueError("a piece is not a part of its array")


def _counted(told: Any) -> int:
    number = int(told)
    if not 0 <= number <= _MAX_COUNT:
        raise ValueError("a count of nothing that can be")
    return number


def _call(told: Mapping[str, Any], n_devices: int) -> dict[str, Any]:
    """Return one call between devices; its bytes are counted here, from its operand."""
    op, dtype = str(told["op"]), parse_dtype(str(told["dtype"]))
    payload = _counted(dtype.n_bytes(prod(_counted(size) for size in told["shape"])))
    group_size = int(told["group_size"])
    if len(op) > _MAX_NAME or not 0 <= group_size <= n_devices:
        raise ValueError("a call of nothing that can be")
    return {
        "op": op,
        "count": None if told["count"] is None else _counted(told["count"]),
        "payload_bytes": payload,
        "wire_bytes": wire_bytes(op, payload, group_size),
        "is_inserted": bool(told.get("is_inserted")),
        "is_folded": bool(told.get("is_folded")),
    }


def read_value(answer: Frame) -> Any:
    """Return the plain value in an author's answer; raise `InvalidFrame` where there is none."""
    if "value" not in answer.header:
        raise InvalidFrame("the answer has no value")
    left = set(range(len(answer.buffers)))

    def leaf(at: ArrayLeaf) -> Any:
        # One array in a thousand places is small here, and large where it is made one of them.
        if at.number not in left:
            raise InvalidFrame("an array is missing, or in two places")
        left.remove(at.number)
        return array_from(at, answer.buffers[at.number])

    return unpack(answer.header["value"], leaf)
