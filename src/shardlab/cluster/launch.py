"""One launch from its request to its report: run, collect, simulate, compare, estimate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shardlab.cluster.comparison import Verification, compare_runs
from shardlab.cluster.launch_target import LaunchTarget
from shardlab.cluster.launcher import LaunchLimits, ProcessLauncher
from shardlab.cluster.messages import LaunchJob
from shardlab.cluster.records import ProcessRecord, SimulationRecord
from shardlab.cluster.report import LaunchReport, calibration_point, make_report
from shardlab.cluster.simulation import simulate_launch
from shardlab.errors import LabError, NothingToRecord
from shardlab.hardware.calibration import CalibrationPoint
from shardlab.hardware.chips import Hardware
from shardlab.hardware.estimate import Estimate

ReportStep = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """What to launch, where, and what to do with the records."""

    job: LaunchJob
    target: LaunchTarget
    limits: LaunchLimits
    verify: bool = False
    hardware: Hardware | None = None


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    """The report, and the calibration point if there is an estimate of the step."""

    report: LaunchReport
    calibration: CalibrationPoint | None = None


def launch(request: LaunchRequest, report_step: ReportStep = lambda step: None) -> LaunchResult:
    """Start the processes, wait for their records, and report on them."""
    parts = ProcessLauncher(request.job, request.target, request.limits).run(report_step)
    return report_on(request, parts, report_step)


def report_on(
    request: LaunchRequest,
    parts: Sequence[ProcessRecord],
    report_step: ReportStep = lambda step: None,
) -> LaunchResult:
    """Return the report of the records of all processes, with what the request compares."""
    report = make_report(str(request.job.target), request.target.text, parts)
    if not (request.verify or request.hardware):
        return LaunchResult(report=report)
    report_step("simulating the same program")
    job = replace(
        request.job, has_collectives=request.verify, has_traces=request.hardware is not None
    )
    limit = request.limits.total_seconds
    try:
        simulation = simulate_launch(job, n_devices=report.n_devices, limit_seconds=limit)
    except LabError as error:
        # The records of the real processes are worth more than the comparison that failed.
        if not request.verify:
            note = f"not estimated, because the simulation failed: {error.what}"
            return LaunchResult(report=replace(report, notes=(*report.notes, note)))
        raise
    if request.verify:
        report = replace(report, verification=_verify(report, simulation))
    return _with_estimates(request, report, simulation)


def _verify(report: LaunchReport, simulation: SimulationRecord) -> Verification:
    if not report.programs and not simulation.programs:
        raise NothingToRecord(
            "The program ran no shard_map and no jit with shardings: there is nothing to verify.",
            where=f"shardlab launch {report.program}",
            fix="let it run one step on a mesh of all devices, or name a function.",
        )
    return compare_runs(report.programs, simulation.programs, simulation.notes)


def _with_estimates(
    request: LaunchRequest, report: LaunchReport, simulation: SimulationRecord
) -> LaunchResult:
    if request.hardware is None:
        return LaunchResult(report=report)
    estimates: dict[str, Estimate] = {
        key: trace.estimate(request.hardware, dtype="f32" if _is_cpu(report) else "bf16")
        for key, trace in simulation.traces.items()
    }
    report = replace(report, estimates=estimates)
    step = report.step
    if step is None or step.key not in estimates:
        return LaunchResult(report=report)
    point = calibration_point(report, simulation.traces[step.key], estimates[step.key])
    return LaunchResult(report=report, calibration=point)


def _is_cpu(report: LaunchReport) -> bool:
    return report.processes[0].platform == "cpu"
