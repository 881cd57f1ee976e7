"""One run of a program: the shards of every output, its collectives, its peak memory.

Workers encode it, the judge decodes it with strict checks. A shard that equals an earlier one of
the same output, ranges and values, refers to it (`same_as`), so a replicated output is sent once:

>>> import numpy as np
>>> shards = tuple(Shard(device, ((0, 1),), np.array([7], np.int8)) for device in (0, 1))
>>> data, buffers = encode_outputs([RunOutput("", (1,), "int8", shards)])
>>> data[0]["shards"][1], len(buffers)
({'device': 1, 'ranges': [[0, 1]], 'same_as': 0}, 1)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy.typing as npt

from shardlab.collectives.program_flow import SHARD_MAP, UNSHARDED_SHARD_MAP, ProgramFlow
from shardlab.collectives.wire import wire_bytes
from shardlab.errors import LabError
from shardlab.judge.protocol.values import ArrayLeaf, array_bytes, array_from_buffer
from shardlab.sandbox.fields import MAX_INTEGER, Fields
from shardlab.sandbox.frame import InvalidFrame
from shardlab.sharding.dtype import parse_dtype

Ranges = tuple[tuple[int, int], ...]
# Generous beyond any exercise; what they exclude are numbers that only a forgery has.
_MAX_SIZE = 1 << 31
_MAX_NAME = 40
_MAX_OUTPUTS = 1000
_MAX_SHARDS = 1 << 20
_MAX_COLLECTIVES = 100_000


@dataclass(frozen=True)
class Shard:
    """The part of an output that one device holds: a range of each dimension, and its values."""

    device: int
    ranges: Ranges
    values: npt.NDArray[Any]


@dataclass(frozen=True)
class RunOutput:
    """One array of a result, with the shard of each device."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    shards: tuple[Shard, ...]


@dataclass(frozen=True, kw_only=True)
class CollectiveRecord:
    """One collective call: its operand on one device, and how often it is executed."""

    op: str
    shape: tuple[int, ...]
    dtype: str
    count: int | None  # None: in a loop of unknown length
    group_size: int
    is_inserted: bool = False  # by the compiler
    is_folded: bool = False  # the program calls it, and the compiler has removed it

    @property
    def payload_bytes(self) -> int:
        """Return the bytes that one device passes to one call."""
        return parse_dtype(self.dtype).n_bytes(prod(self.shape))

    @property
    def wire_bytes(self) -> int:
        """Return the bytes that one device sends in one call, on a ring."""
        return wire_bytes(self.op, self.payload_bytes, self.group_size)

    @property
    def times(self) -> int:
        """Return how often the call is executed; one if the number is not known."""
        return 1 if self.count is None else self.count


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a program computed and communicated on the devices of a mesh."""

    outputs: tuple[RunOutput, ...]
    collectives: tuple[CollectiveRecord, ...]
    peak_bytes: int
    flow: ProgramFlow
    # Required constructs without which the program returns the same.
    ineffective: tuple[str, ...] = ()
    # Known from the trace alone; see docs/judge.md for what that is worth.
    is_checked: bool = True  # no shard_map has check_vma=False
    eager_bytes: int = 0  # the largest unsharded array that is created outside of any jit
    # Computed outside of any shard_map, by primitive: in the exported program a key that is split
    # is the same arithmetic as random bits that are drawn.
    traced_outside_arrays: tuple[str, ...] = ()

    @property
    def has_shard_map(self) -> bool:
        return bool({SHARD_MAP, UNSHARDED_SHARD_MAP} & set(self.flow.constructs))

    def encode(self) -> tuple[dict[str, Any], tuple[bytes, ...]]:
        """Return the fields that a run itself shows, and the values of its shards."""
        outputs, buffers = encode_outputs(self.outputs)
        fields = {
            "outputs": outputs,
            "collectives": [_encode_collective(call) for call in self.collectives],
            "peak_bytes": self.peak_bytes,
            "flow": encode_flow(self.flow),
            "ineffective": list(self.ineffective),
        }
        return fields, tuple(buffers)


def encode_outputs(outputs: Sequence[RunOutput]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Return outputs as JSON data, and the values of the shards that differ."""
    encoded: list[dict[str, Any]] = []
    buffers: list[bytes] = []
    for output in outputs:
        first_numbers: dict[tuple[Ranges, bytes], int] = {}
        entries: list[dict[str, Any]] = []
        for number, shard in enumerate(sorted(output.shards, key=lambda shard: shard.device)):
            values = array_bytes(shard.values)
            # By bytes: NaNs and signed zeros must arrive as they are.
            first = first_numbers.setdefault((shard.ranges, values), number)
            ranges = [list(bounds) for bounds in shard.ranges]
            entry = {"device": shard.device, "ranges": ranges}
            if first == number:
                buffers.append(values)
                entries.append(entry)
            else:
                entries.append({**entry, "same_as": first})
        shape = [int(size) for size in output.shape]
        encoded.append(
            {"path": output.path, "shape": shape, "dtype": output.dtype, "shards": entries}
        )
    return encoded, buffers


def encode_flow(flow: ProgramFlow) -> dict[str, Any]:
    """Return the flow of a program as JSON data."""
    return {
        "constructs": list(flow.constructs),
        "unused": list(flow.unused),
        "outside": list(flow.outside),
        "is_placed": flow.is_placed,
        "n_shard_maps": flow.n_shard_maps,
        "mesh_axes": list(flow.mesh_axes),
        "has_full_operand": flow.has_full_operand,
        "outside_arrays": list(flow.outside_arrays),
        "body_elements": flow.body_elements,
        "matmul_elements": flow.matmul_elements,
    }


def read_flow(fields: Fields) -> ProgramFlow:
    """Return the flow of a program, from the field `flow`."""
    flow_fields = Fields(fields.value("flow"), "flow")
    flow = ProgramFlow(
        constructs=flow_fields.texts("constructs"),
        unused=flow_fields.texts("unused"),
        outside=flow_fields.texts("outside"),
        is_placed=flow_fields.boolean("is_placed"),
        n_shard_maps=flow_fields.integer("n_shard_maps"),
        mesh_axes=flow_fields.texts("mesh_axes"),
        has_full_operand=flow_fields.boolean("has_full_operand"),
        outside_arrays=flow_fields.texts("outside_arrays"),
        body_elements=flow_fields.integer("body_elements"),
        matmul_elements=flow_fields.integer("matmul_elements"),
    )
    flow_fields.finish()
    return flow


def _encode_collective(call: CollectiveRecord) -> dict[str, Any]:
    return {**vars(call), "shape": list(call.shape)}


def shard_ranges(index: Sequence[slice], shape: Sequence[int]) -> Ranges:
    """Return where a shard starts and stops in each dimension.

    >>> shard_ranges((slice(None), slice(2, 4)), (3, 8))
    ((0, 3), (2, 4))
    """
    bounds = [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
    return tuple((int(start), int(stop)) for start, stop in bounds)


# ---------------------------------------------------------------------------------- strict reading


def read_run_result(
    fields: Fields, buffers: Sequence[bytes], devices: Collection[int]
) -> RunResult:
    """Return the run that a worker has sent. Raises `InvalidFrame` for anything impossible."""
    device_ids = frozenset(devices)
    values = iter(buffers)
    # Outputs are read in order, because each takes its buffers from the same iterator.
    result = RunResult(
        outputs=tuple(
            _read_output(output, values, device_ids)
            for output in fields.objects("outputs", "output", _MAX_OUTPUTS)
        ),
        collectives=tuple(
            _read_collective(call, len(device_ids))
            for call in fields.objects("collectives", "collective", _MAX_COLLECTIVES)
        ),
        peak_bytes=fields.integer("peak_bytes"),
        flow=read_flow(fields),
        ineffective=fields.texts("ineffective"),
    )
    if next(values, None) is not None:
        raise InvalidFrame("there are more buffers than shards")
    return result


def _read_output(fields: Fields, buffers: Iterator[bytes], devices: Set[int]) -> RunOutput:
    path, dtype = fields.text("path"), fields.text("dtype", _MAX_NAME)
    # A huge shape with tiny shards is possible here. It costs nothing: grading compares the shape
    # with the expected one before it allocates an array of it.
    shape = fields.integers("shape", _MAX_SIZE)
    shards: list[Shard] = []
    for entry in fields.objects("shards", "shard", _MAX_SHARDS):
        shards.append(_read_shard(entry, shape, dtype, shards, buffers))
    fields.finish()
    _check_devices(shards, devices)
    return RunOutput(path, shape, dtype, tuple(shards))


def _read_shard(
    fields: Fields,
    shape: tuple[int, ...],
    dtype: str,
    earlier: Sequence[Shard],
    buffers: Iterator[bytes],
) -> Shard:
    device, ranges = fields.integer("device", _MAX_SIZE), _read_ranges(fields, shape)
    if fields.has("same_as"):
        number = fields.integer("same_as", _MAX_SHARDS)
        # Shards of different ranges cannot be the same one, whatever their values are.
        if number >= len(earlier) or earlier[number].ranges != ranges:
            raise InvalidFrame("shard: 'same_as' refers to no earlier shard of the same ranges")
        values = earlier[number].values
    else:
        sizes = tuple(stop - start for start, stop in ranges)
        values = array_from_buffer(ArrayLeaf(0, sizes, dtype), next(buffers, b""))
    fields.finish()
    return Shard(device, ranges, values)


def _read_ranges(fields: Fields, shape: tuple[int, ...]) -> Ranges:
    bounds = fields.items("ranges")
    is_valid = len(bounds) == len(shape) and all(
        isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair)
        for pair in bounds
    )
    if not is_valid:
        raise InvalidFrame("shard: 'ranges' is not a pair of integers per dimension")
    for (start, stop), size in zip(bounds, shape, strict=True):
        if not 0 <= start <= stop <= size:
            raise InvalidFrame("shard: a range is outside of its array")
    return tuple((start, stop) for start, stop in bounds)


def _check_devices(shards: Sequence[Shard], devices: Set[int]) -> None:
    """Require an output once on every device of the mesh, or on one of them alone."""
    holders = {shard.device for shard in shards}
    is_on_one = len(holders) == 1 and holders < devices
    if len(holders) < len(shards) or not (holders == devices or is_on_one):
        raise InvalidFrame("an output is not on the devices of the mesh, or twice on one")


def _read_collective(fields: Fields, n_devices: int) -> CollectiveRecord:
    """Return one collective. Its bytes are computed here, never sent: they decide verdicts."""
    call = CollectiveRecord(
        op=fields.text("op", _MAX_NAME),
        shape=fields.integers("shape"),
        dtype=fields.text("dtype", _MAX_NAME),
        count=fields.optional_integer("count"),
        group_size=fields.integer("group_size", n_devices),
        is_inserted=fields.boolean("is_inserted"),
        is_folded=fields.boolean("is_folded"),
    )
    fields.finish()
    try:
        # Both raise for unknown names. Later code adds bytes up and prints them, so they must
        # stay integers of a reasonable size.
        is_in_range = call.payload_bytes <= MAX_INTEGER and call.wire_bytes <= MAX_INTEGER
    except (LabError, KeyError) as error:
        raise InvalidFrame("collective: an unknown operation or dtype") from error
    if not is_in_range:
        raise InvalidFrame("collective: more bytes than an operand can have")
    return call
