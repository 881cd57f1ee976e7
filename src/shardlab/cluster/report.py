"""The report of a launch: its processes, what the programs computed, and how long they took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardlab.cluster.comparison import Verification
from shardlab.cluster.records import (
    ProcessRecord,
    ProgramRecord,
    median,
    merge_programs,
)
from shardlab.hardware.calibration import CalibrationPoint
from shardlab.hardware.estimate import Estimate
from shardlab.tracing.trace import Trace

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class LaunchReport:
    """One launch. `processes` have no programs of their own: these are merged in `programs`."""

    program: str
    launched_on: str
    processes: tuple[ProcessRecord, ...]
    programs: tuple[ProgramRecord, ...]
    verification: Verification | None = None
    estimates: Mapping[str, Estimate] | None = None  # by the key of a program
    notes: tuple[str, ...] = ()

    @property
    def n_devices(self) -> int:
        return sum(len(process.devices) for process in self.processes)

    @property
    def step(self) -> ProgramRecord | None:
        """The program that took most of the time: the train step of a training script."""
        called = [program for program in self.programs if program.call_seconds]
        return max(
            called,
            key=lambda program: (sum(program.call_seconds[1:]), sum(program.call_seconds)),
            default=None,
        )

    def to_json(self) -> dict[str, Any]:
        estimates = self.estimates or {}
        return {
            "format": FORMAT,
            "program": self.program,
            "launched_on": self.launched_on,
            "processes": [process.to_json() for process in self.processes],
            "programs": [program.to_json() for program in self.programs],
            "verification": None if self.verification is None else self.verification.to_json(),
            "estimates": {key: estimate.to_json() for key, estimate in estimates.items()},
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LaunchReport:
        verification = data["verification"]
        return cls(
            program=data["program"],
            launched_on=data["launched_on"],
            processes=tuple(map(ProcessRecord.from_json, data["processes"])),
            programs=tuple(map(ProgramRecord.from_json, data["programs"])),
            verification=None if verification is None else Verification.from_json(verification),
            estimates={k: Estimate.from_json(e) for k, e in data["estimates"].items()} or None,
            notes=tuple(data["notes"]),
        )


def make_report(program: str, launched_on: str, parts: Sequence[ProcessRecord]) -> LaunchReport:
    """Return the report of the records of all processes."""
    parts = sorted(parts, key=lambda part: part.process)
    notes = []
    versions = sorted({part.jax_version for part in parts})
    if len(versions) > 1:
        notes.append(f"the processes have different versions of JAX: {', '.join(versions)}")
    return LaunchReport(
        program=program,
        launched_on=launched_on,
        processes=tuple(replace(part, programs=()) for part in parts),
        programs=merge_programs(parts),
        notes=tuple(notes),
    )


def step_seconds(program: ProgramRecord) -> float | None:
    """Return the median time of the calls after the first, which also connects the processes."""
    return median(program.call_seconds[1:] or program.call_seconds)


def calibration_point(report: LaunchReport, trace: Trace, estimate: Estimate) -> CalibrationPoint:
    """Return the measured time of the step beside its estimate."""
    step, first = report.step, report.processes[0]
    assert step is not None
    seconds = step_seconds(step)
    assert seconds is not None
    return CalibrationPoint(
        program=step.key,
        mesh=step.mesh,
        n_processes=len(report.processes),
        n_devices=step.n_devices,
        device_kind=first.device_kind,
        platform=first.platform,
        jax_version=first.jax_version,
        hardware=estimate.hardware,
        flops=trace.flops,
        wire_bytes=trace.wire_bytes,
        compute_seconds=estimate.compute_seconds,
        communication_seconds=estimate.communication_seconds,
        measured_seconds=seconds,
        n_calls=step.n_calls,
    )
