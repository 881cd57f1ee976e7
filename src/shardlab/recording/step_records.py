"""The records of a recording: steps, values by group of devices, collectives, the timeline.

They hold plain data and load no JAX. Floats that JSON does not have are text: "NaN", "Infinity".
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shardlab.collectives.ring_steps import Schedule, count_chunks, ring_step, schedule_of

Number = int | float


def number_to_json(value: Number | None) -> Number | str | None:
    """Return a number, or its name if JSON has no number for it."""
    if value is None or isinstance(value, int) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def number_from_json(value: Number | str | None) -> Number | None:
    """Return the number of `number_to_json`."""
    return float(value) if isinstance(value, str) else value


_STRUCT_CODES = {"f4": "f", "f8": "d", "i4": "i", "u4": "I", "i8": "q", "u8": "Q", "u1": "B"}


@dataclass(frozen=True, kw_only=True)
class Cells:
    """The elements of an array on one device, or means of blocks of them, as rows and columns."""

    shape: tuple[int, ...]
    of: Literal["all", "block mean"]
    data: str  # base64, little-endian
    dtype: str  # f4, f8, i4, ...; "as" in JSON

    def numbers(self) -> tuple[Number, ...]:
        """Return the cells row by row."""
        raw = base64.b64decode(self.data)
        code = _STRUCT_CODES[self.dtype]
        return struct.unpack(f"<{len(raw) // struct.calcsize(code)}{code}", raw)

    def to_json(self) -> dict[str, Any]:
        return {"shape": list(self.shape), "of": self.of, "data": self.data, "as": self.dtype}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cells:
        return cls(shape=tuple(data["shape"]), of=data["of"], data=data["data"], dtype=data["as"])


@dataclass(frozen=True, kw_only=True)
class ValueGroup:
    """Devices whose copies of a value are equal bit for bit, and a summary of that copy."""

    devices: str
    n: int
    min: Number | None
    max: Number | None
    mean: Number | None
    n_nan: int
    cells: Cells | None
    slice: tuple[tuple[int, int], ...] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "devices": self.devices,
            "n": self.n,
            "min": number_to_json(self.min),
            "max": number_to_json(self.max),
            "mean": number_to_json(self.mean),
            "n_nan": self.n_nan,
            "cells": self.cells.to_json() if self.cells else None,
            "slice": None if self.slice is None else [list(range_) for range_ in self.slice],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ValueGroup:
        ranges = data["slice"]
        return cls(
            devices=data["devices"],
            n=data["n"],
            min=number_from_json(data["min"]),
            max=number_from_json(data["max"]),
            mean=number_from_json(data["mean"]),
            n_nan=data["n_nan"],
            cells=Cells.from_json(data["cells"]) if data["cells"] else None,
            slice=None if ranges is None else tuple((start, stop) for start, stop in ranges),
        )


@dataclass(frozen=True, kw_only=True)
class RecordedValue:
    """A value on every device, by groups of equal copies.

    `declared_over` is JAX's type: the mesh axes over which the value may vary; None if JAX did not
    check it. `varies_over` is what the copies show. `device_means` has one number per device where
    not every group is listed.
    """

    id: int
    name: str | None
    type: str
    dtype: str
    shape: tuple[int, ...]
    spec: str | None
    varies_over: tuple[str, ...]
    declared_over: tuple[str, ...] | None
    partial_over: tuple[str, ...]
    disagrees: bool
    groups: tuple[ValueGroup, ...]
    n_groups: int
    device_means: Cells | None = None

    def group_of(self, device: int) -> ValueGroup | None:
        """Return the group of a device; None if it is not listed."""
        from shardlab.recording.device_sets import parse_device_set

        for group in self.groups:
            if device in parse_device_set(group.devices):
                return group
        return None

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "type": self.type,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "spec": self.spec,
            "varies_over": list(self.varies_over),
            "declared_over": None if self.declared_over is None else list(self.declared_over),
            "partial_over": list(self.partial_over),
            "disagrees": self.disagrees,
            "groups": [group.to_json() for group in self.groups],
            "n_groups": self.n_groups,
            "groups_shown": len(self.groups),
            "device_means": self.device_means.to_json() if self.device_means else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RecordedValue:
        declared, means = data["declared_over"], data.get("device_means")
        return cls(
            id=data["id"],
            name=data["name"],
            type=data["type"],
            dtype=data["dtype"],
            shape=tuple(data["shape"]),
            spec=data["spec"],
            varies_over=tuple(data["varies_over"]),
            declared_over=None if declared is None else tuple(declared),
            partial_over=tuple(data["partial_over"]),
            disagrees=data["disagrees"],
            groups=tuple(map(ValueGroup.from_json, data["groups"])),
            n_groups=data["n_groups"],
            device_means=Cells.from_json(means) if means else None,
        )


# Sender and receiver as positions in the group, the chunk, and what the receiver does with it.
Transfer = tuple[int, int, int, Literal["copy", "add"]]
# Pairs (sender + i, receiver + i) for i below the count: a rotation of any size has two runs.
PairRun = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class RecordedCollective:
    """One execution of a collective: its groups of devices, bytes, time and hops.

    Hops are not stored: `hop` computes any of them from the schedule, as the page does
    (`web/src/shared/hop_schedule.ts`).
    """

    op: str
    axes: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    n_groups: int
    group_size: int
    payload_bytes: int
    wire_bytes: int
    seconds: float | None
    algorithm: str
    schedule: Schedule | None  # None if it is not known who sends to whom
    pairs: tuple[PairRun, ...]  # of the schedule "pairs"
    n_hops: int
    n_chunks: int  # of the operand on one device; an element is never split
    chunk_label: str
    reads: int
    writes: int

    def hop(self, number: int) -> tuple[Transfer, ...]:
        """Return the transfers of one hop in one group; the first hop is 0."""
        if self.schedule is None or not 0 <= number < self.n_hops:
            return ()
        pairs = expand_pairs(self.pairs)
        sends = ring_step(self.schedule, self.group_size, number, pairs, self.n_chunks)
        # The full operand is one chunk, number 0.
        return tuple(
            (send.sender, send.receiver, send.chunk or 0, "add" if send.is_added else "copy")
            for send in sends
        )

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "axes": list(self.axes),
            "groups": [list(group) for group in self.groups],
            "pairs": [list(run) for run in self.pairs],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RecordedCollective:
        fields = {key: value for key, value in data.items() if key not in ("hops", "hops_shown")}
        if "schedule" not in data:
            fields |= _schedule_of_version_1(data)
        # Earlier files split every operand into one chunk per device.
        fields.setdefault(
            "n_chunks", count_chunks(fields["schedule"] or "pairs", data["group_size"])
        )
        return cls(
            **{
                **fields,
                "axes": tuple(data["axes"]),
                "groups": tuple(map(tuple, data["groups"])),
                "pairs": tuple((first, to, n) for first, to, n in fields["pairs"]),
            }
        )


def _schedule_of_version_1(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schedule of a collective that a file of version 1 has with its first hops."""
    schedule = schedule_of("psum_scatter" if data["op"] == "reduce_scatter" else data["op"])
    if schedule != "pairs":
        return {"schedule": schedule, "pairs": ()}
    if not data["hops"]:
        return {"schedule": None, "pairs": ()}
    pairs = [(sender, receiver) for sender, receiver, _, _ in data["hops"][0]]
    return {"schedule": schedule, "pairs": pair_runs(pairs)}


def pair_runs(pairs: Sequence[tuple[int, int]]) -> tuple[PairRun, ...]:
    """Return pairs as runs.

    >>> pair_runs([(0, 1), (1, 2), (2, 3), (3, 0)])
    ((0, 1, 3), (3, 0, 1))
    """
    runs: list[PairRun] = []
    for sender, receiver in pairs:
        if runs:
            first, to, count = runs[-1]
            if (sender, receiver) == (first + count, to + count):
                runs[-1] = (first, to, count + 1)
                continue
        runs.append((sender, receiver, 1))
    return tuple(runs)


def expand_pairs(runs: Sequence[PairRun]) -> list[tuple[int, int]]:
    """Return the pairs of runs."""
    return [(first + i, to + i) for first, to, count in runs for i in range(count)]


@dataclass(frozen=True, kw_only=True)
class TakenBranch:
    """A branch that only some devices take."""

    line: int
    taken_by: str

    def to_json(self) -> dict[str, Any]:
        return {**vars(self)}


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Devices that wait forever in a collective, and those that never arrive."""

    devices: str
    missing: str
    text: str

    def to_json(self) -> dict[str, Any]:
        return {**vars(self)}


Frame = tuple[int, int, str]  # file, line, function
LoopIteration = tuple[str, int, int, int | None]  # kind, line, iteration, length


@dataclass(frozen=True, kw_only=True)
class Step:
    """One equation of the program, executed once on every device."""

    file: int
    line: int
    frames: tuple[Frame, ...]
    phase: Literal["forward", "backward"]
    region: Literal["body", "outside"]
    op: str
    code: str
    loop: tuple[LoopIteration, ...] = ()
    branch: TakenBranch | None = None
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    collective: RecordedCollective | None = None
    waiting: Waiting | None = None
    flops: int = 0
    bytes: int = 0
    seconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "frames": [list(frame) for frame in self.frames],
            "loop": [list(iteration) for iteration in self.loop],
            "branch": self.branch.to_json() if self.branch else None,
            "reads": list(self.reads),
            "writes": list(self.writes),
            "collective": self.collective.to_json() if self.collective else None,
            "waiting": self.waiting.to_json() if self.waiting else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Step:
        branch, waiting, collective = data["branch"], data["waiting"], data["collective"]
        return cls(
            **{
                **data,
                "frames": tuple((file, line, name) for file, line, name in data["frames"]),
                "loop": tuple((kind, line, i, n) for kind, line, i, n in data["loop"]),
                "branch": TakenBranch(**branch) if branch else None,
                "reads": tuple(data["reads"]),
                "writes": tuple(data["writes"]),
                "collective": RecordedCollective.from_json(collective) if collective else None,
                "waiting": Waiting(**waiting) if waiting else None,
            }
        )


@dataclass(frozen=True, kw_only=True)
class TimelineBar:
    """One step on a lane; `exposed` if compute waits for it."""

    step: int
    start_s: float
    duration_s: float
    exposed: bool

    def to_json(self) -> dict[str, Any]:
        return {**vars(self)}


@dataclass(frozen=True, kw_only=True)
class TimelineLane:
    """The steps that one resource executes: compute, or the links of one mesh axis."""

    name: str
    bars: tuple[TimelineBar, ...]

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "bars": [bar.to_json() for bar in self.bars]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TimelineLane:
        return cls(name=data["name"], bars=tuple(TimelineBar(**bar) for bar in data["bars"]))


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Compute and communication over time, on the chosen chip."""

    total_s: float = 0.0
    lanes: tuple[TimelineLane, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"total_s": self.total_s, "lanes": [lane.to_json() for lane in self.lanes]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Timeline:
        return cls(total_s=data["total_s"], lanes=tuple(map(TimelineLane.from_json, data["lanes"])))


@dataclass(frozen=True, kw_only=True)
class RecordingTotals:
    """Sums over all steps, per device."""

    flops: int = 0
    wire_bytes: int = 0
    compute_s: float = 0.0
    communication_s: float = 0.0
    step_s: float = 0.0
    peak_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        return {**vars(self)}


@dataclass(frozen=True, kw_only=True)
class RecordingFailure:
    """Why the program did not run to its end: a deadlock, or an error."""

    kind: str
    message: str
    where: str = ""
    fix: str = ""
    file: int = -1
    line: int = 0

    def to_json(self) -> dict[str, Any]:
        return {**vars(self)}


@dataclass(frozen=True, kw_only=True)
class RecordedFinding:
    """A finding of `shardlab check` for the same program, with its place in the sources."""

    code: str
    severity: str
    message: str
    fix: str = ""
    cause: str = ""
    shows: tuple[str, ...] = field(default_factory=tuple)
    file: int = -1
    line: int = 0

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "shows": list(self.shows)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RecordedFinding:
        return cls(**{**data, "shows": tuple(data["shows"])})
