"""What one process of a launch computed, and what a simulation computed in its place.

The same records describe both sides, so that `comparison.py` needs no cases: a real process has the
shards of its own devices, a simulation those of all devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardlab.collectives.call import CollectiveCall
from shardlab.sharding.mesh import MeshSizes
from shardlab.tracing.trace import Trace

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """One shard of an output on one device.

    `device` is a position in `jax.devices()`: real processes number their devices with gaps.
    """

    device: int
    index: tuple[tuple[int, int], ...]  # start and stop in each dimension of the array
    values: str  # base64 of the elements in row-major order
    n_elements: int  # in `values`; fewer than the shard has if it is large
    is_sampled: bool = False

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "index": [list(bounds) for bounds in self.index]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ShardRecord:
        return cls(**{**data, "index": tuple((start, stop) for start, stop in data["index"])})


@dataclass(frozen=True, kw_only=True)
class OutputRecord:
    """One output of one call of a program."""

    name: str
    call: int  # from 0
    shape: tuple[int, ...]
    dtype: str
    sharding: str
    shards: tuple[ShardRecord, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "shape": list(self.shape),
            "shards": [shard.to_json() for shard in self.shards],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OutputRecord:
        shards = tuple(map(ShardRecord.from_json, data["shards"]))
        return cls(**{**data, "shape": tuple(data["shape"]), "shards": shards})


@dataclass(frozen=True, kw_only=True)
class ProgramRecord:
    """One sharded program: its compiled collectives, times, and outputs of its recorded calls."""

    key: str  # its name, with a number if the script ran several of that name
    mesh: MeshSizes
    n_devices: int
    collectives: tuple[CollectiveCall, ...] | None  # None where they were not compiled or read
    n_calls: int
    compile_seconds: float | None = None
    call_seconds: tuple[float, ...] = ()
    outputs: tuple[OutputRecord, ...] = ()
    # The processes that have devices of it, and how often each of them called it.
    processes: tuple[int, ...] = ()
    calls_by_process: tuple[int, ...] = ()

    @property
    def is_called_unevenly(self) -> bool:
        """Whether some of its processes called it less often than others."""
        return len(set(self.calls_by_process)) > 1

    @property
    def uneven_calls_text(self) -> str:
        """Who did not call it: 'process 1 never called it (calls: 3 on process 0, ...)'."""
        pairs = list(zip(self.processes, self.calls_by_process, strict=True))
        absent = [str(process) for process, count in pairs if not count]
        names = f"{', '.join(absent[:-1])} and {absent[-1]}" if absent[1:] else "".join(absent)
        who = f"process{'es' if absent[1:] else ''} {names} never called it"
        calls = ", ".join(f"{count} on process {process}" for process, count in pairs)
        return f"{who if absent else 'not every process called it as often'} (calls: {calls})"

    def to_json(self) -> dict[str, Any]:
        calls = self.collectives
        return {
            **vars(self),
            "mesh": dict(self.mesh),
            "collectives": None if calls is None else [call.to_json() for call in calls],
            "call_seconds": list(self.call_seconds),
            "processes": list(self.processes),
            "calls_by_process": list(self.calls_by_process),
            "outputs": [output.to_json() for output in self.outputs],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProgramRecord:
        calls = data["collectives"]
        changes = {
            "mesh": tuple(data["mesh"].items()),
            "collectives": None if calls is None else tuple(map(CollectiveCall.from_json, calls)),
            "call_seconds": tuple(data["call_seconds"]),
            "processes": tuple(data.get("processes", ())),
            "calls_by_process": tuple(data.get("calls_by_process", ())),
            "outputs": tuple(map(OutputRecord.from_json, data["outputs"])),
        }
        return cls(**{**data, **changes})


@dataclass(frozen=True, kw_only=True)
class ProcessRecord:
    """The part of one process."""

    process: int
    n_processes: int
    host: str
    pid: int
    platform: str
    device_kind: str
    devices: tuple[int, ...]  # positions in jax.devices()
    jax_version: str
    peak_memory_bytes: int | None  # of the process
    device_peak_bytes: tuple[int | None, ...]  # None where the backend reports none
    programs: tuple[ProgramRecord, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "devices": list(self.devices),
            "device_peak_bytes": list(self.device_peak_bytes),
            "programs": [program.to_json() for program in self.programs],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProcessRecord:
        changes = {
            "devices": tuple(data["devices"]),
            "device_peak_bytes": tuple(data["device_peak_bytes"]),
            "programs": tuple(map(ProgramRecord.from_json, data["programs"])),
        }
        return cls(**{**data, **changes})


@dataclass(frozen=True, kw_only=True)
class SimulationRecord:
    """The same program on virtual devices: all shards in one process, and a trace of each program.

    `traces` are by the key of a program; what could not be traced is in `notes`.
    """

    programs: tuple[ProgramRecord, ...]
    traces: Mapping[str, Trace]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "programs": [program.to_json() for program in self.programs],
            "traces": {key: trace.to_json() for key, trace in self.traces.items()},
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SimulationRecord:
        traces = {key: Trace.from_json(trace) for key, trace in data["traces"].items()}
        programs = tuple(map(ProgramRecord.from_json, data["programs"]))
        return cls(programs=programs, traces=traces, notes=tuple(data["notes"]))


def merge_programs(parts: Sequence[ProcessRecord]) -> tuple[ProgramRecord, ...]:
    """Return each program once, with the shards of all processes.

    The times of a call are those of the slowest process; compiling too. Collectives are those of
    process 0: XLA compiles one program for all processes.
    """
    by_key: dict[str, dict[int, ProgramRecord]] = {}
    for part in parts:
        for program in part.programs:
            by_key.setdefault(program.key, {})[part.process] = program
    return tuple(map(_merge_program, by_key.values()))


def _merge_program(by_process: Mapping[int, ProgramRecord]) -> ProgramRecord:
    records = list(by_process.values())
    first = records[0]
    processes = sorted({process for record in records for process in record.processes})
    outputs: dict[tuple[str, int], list[OutputRecord]] = {}
    for record in records:
        for output in record.outputs:
            outputs.setdefault((output.name, output.call), []).append(output)
    compile_times = [r.compile_seconds for r in records if r.compile_seconds is not None]
    return ProgramRecord(
        key=first.key,
        mesh=first.mesh,
        n_devices=first.n_devices,
        collectives=first.collectives,
        n_calls=max(record.n_calls for record in records),
        compile_seconds=max(compile_times, default=None),
        call_seconds=tuple(
            max(times) for times in zip(*(record.call_seconds for record in records), strict=False)
        ),
        outputs=tuple(map(_merge_output, outputs.values())),
        processes=tuple(processes),
        calls_by_process=tuple(
            by_process[process].n_calls if process in by_process else 0 for process in processes
        ),
    )


def _merge_output(records: Sequence[OutputRecord]) -> OutputRecord:
    first = records[0]
    shards = (shard for record in records for shard in record.shards)
    return OutputRecord(
        name=first.name,
        call=first.call,
        shape=first.shape,
        dtype=first.dtype,
        sharding=first.sharding,
        shards=tuple(sorted(shards, key=lambda shard: shard.device)),
    )


def median(values: Iterable[float]) -> float | None:
    """Return the median, or None of nothing.

    >>> median([3.0, 1.0, 2.0]), median([])
    (2.0, None)
    """
    ordered = sorted(values)
    if not ordered:
        return None
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
