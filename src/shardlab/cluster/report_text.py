"""A launch report as lines of text; the last one says what matters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from shardlab._text.units import bytes_text, count_text, seconds_text
from shardlab.cluster.comparison import Verification
from shardlab.cluster.records import ProcessRecord, ProgramRecord
from shardlab.cluster.report import LaunchReport, step_seconds
from shardlab.collectives.call import CollectiveCall
from shardlab.sharding.mesh import mesh_text

_MAX_DIFFERENCES = 20
_MAX_COLLECTIVES = 8


def report_text(report: LaunchReport) -> str:
    """Return the processes, the programs, the differences, and the conclusion."""
    lines = [
        f"{report.program} on {processes_text(len(report.processes))}, "
        f"{count_text(report.n_devices, 'device')} ({report.launched_on})",
        "",
        *map(_process_line, report.processes),
    ]
    for program in report.programs:
        lines += ["", *_program_lines(program)]
    if report.verification is not None:
        lines += ["", *_verification_lines(report.verification)]
    uneven = [program for program in report.programs if program.is_called_unevenly]
    if uneven:
        lines.append("")
    for program in uneven:
        lines.append(
            f"warning: {program.key}: {program.uneven_calls_text}; all processes must run the same "
            "programs"
        )
    notes = (*report.notes, *(report.verification.notes if report.verification else ()))
    if notes:
        lines += ["", *(f"note: {note}" for note in notes)]
    return "\n".join([*lines, "", conclusion(report)])


def conclusion(report: LaunchReport) -> str:
    """Return the last line: whether the simulation agrees; the step time beside its estimate."""
    n_processes = len(report.processes)
    real = processes_text(n_processes, "real ")
    verification = report.verification
    if verification is None:
        text = f"{real} ran {count_text(len(report.programs), 'program')}"
    elif verification.agrees:
        text = f"simulation and {real} agree on all {count_text(verification.n_outputs, 'output')}"
    else:
        text = (
            f"simulation and {real} differ in {count_text(len(verification.differences), 'place')}"
        )
    step = report.step
    seconds = None if step is None else step_seconds(step)
    if step is None or seconds is None:
        return text
    text += f"; step {seconds_text(seconds)}"
    if (estimate := (report.estimates or {}).get(step.key)) is not None:
        bounds = dict.fromkeys((seconds_text(estimate.lower), seconds_text(estimate.upper)))
        text += f", estimated {' to '.join(bounds)}"
    return text


def processes_text(count: int, kind: str = "") -> str:
    """Return '1 process' or '4 real processes'.

    >>> processes_text(4, "real ")
    '4 real processes'
    """
    return f"{count:,} {kind}process{'' if count == 1 else 'es'}"


def _process_line(process: ProcessRecord) -> str:
    devices = ",".join(map(str, process.devices))
    line = (
        f"  process {process.process}  {process.host}, pid {process.pid}, {process.device_kind} "
        f"{'device' if len(process.devices) == 1 else 'devices'} {devices}"
    )
    if process.peak_memory_bytes is not None:
        line += f", peak memory {bytes_text(process.peak_memory_bytes)}"
    device_peaks = [peak for peak in process.device_peak_bytes if peak is not None]
    if device_peaks:
        line += f", peak of a device {bytes_text(max(device_peaks))}"
    return line


def _program_lines(program: ProgramRecord) -> Iterator[str]:
    mesh = f" on {mesh_text(program.mesh)}" if program.mesh else ""
    yield f"{program.key}{mesh}"
    times = []
    if program.compile_seconds is not None:
        times.append(f"compiled in {seconds_text(program.compile_seconds)}")
    if program.call_seconds:
        times.append(f"first call {seconds_text(program.call_seconds[0])}")
    if program.n_calls > 1 and (seconds := step_seconds(program)) is not None:
        times.append(
            f"{count_text(program.n_calls - 1, 'more call')}, median {seconds_text(seconds)}"
        )
    yield f"  time         {'; '.join(times)}"
    recorded = {output.name: output for output in program.outputs}
    outputs = [
        f"{name.removeprefix(program.key) or 'result'} {output.dtype}{list(output.shape)} "
        f"{output.sharding}"
        for name, output in recorded.items()
    ]
    more = f"; and {len(outputs) - 4} more" if len(outputs) > 4 else ""
    yield f"  outputs      {'; '.join(outputs[:4]) or 'none'}{more}"
    calls = Counter(map(_collective_text, program.collectives or ()))
    if program.collectives is not None and not calls:
        yield "  collectives  none"
    for number, (text, count) in enumerate(calls.most_common(_MAX_COLLECTIVES)):
        label = "" if number else "collectives"
        yield f"  {label:12} {count} x {text}" if count > 1 else f"  {label:12} {text}"
    if len(calls) > _MAX_COLLECTIVES:
        yield f"  {'':12} and {len(calls) - _MAX_COLLECTIVES} more kinds"


def _collective_text(call: CollectiveCall) -> str:
    shape = ",".join(map(str, call.shape))
    source = f"  {call.source}" if call.source.line else ""
    return f"{call.op} over {','.join(call.mesh_axes)} of {call.dtype}[{shape}]{source}"


def _verification_lines(verification: Verification) -> Iterator[str]:
    if verification.agrees:
        yield (
            f"verified: {count_text(verification.n_outputs, 'output')} in "
            f"{count_text(verification.n_shards, 'shard')}, "
            f"{count_text(verification.n_elements, 'element')}; shardings; "
            f"{count_text(verification.n_collectives, 'collective')} of the compiled programs"
        )
        return
    yield "differences"
    for difference in verification.differences[:_MAX_DIFFERENCES]:
        yield f"  {difference.kind:12} {difference.subject}: {difference.sentence}"
    rest = len(verification.differences) - _MAX_DIFFERENCES
    if rest > 0:
        yield f"  and {rest} more"
