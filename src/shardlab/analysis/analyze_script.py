"""`trace` and `check` of a script: every sharded program that it runs, each once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shardlab.analysis.project_config import read_config
from shardlab.checks.check_codes import make_finding
from shardlab.checks.check_program import check_program
from shardlab.errors import LabError
from shardlab.findings.finding import Finding
from shardlab.findings.report import Report, most_severe_first
from shardlab.findings.source import SourceLocation
from shardlab.sharding.mesh import mesh_text
from shardlab.tracing.trace import Trace, make_trace

if TYPE_CHECKING:
    from shardlab.simulator.interpreter.replicas import ReplicaDifference
    from shardlab.simulator.script_programs import ProgramRun, ScriptRun

OnProgress = Callable[[str], None]

_ONE_MESH = (
    "A script runs on its own mesh only, so its values were not compared: check a function "
    "(file.py:function) to compare several meshes, or with --reference."
)


def trace_script(
    path: str, args: Sequence[str], *, on_progress: OnProgress = lambda text: None
) -> tuple[list[Trace], tuple[str, ...], BaseException | None]:
    """Run a script in simulated mode; return the trace of each program, and notes on the run.

    The program that sends most comes first; among those that send nothing, the one that computes
    most.
    The last item is the exception that ended the script, if there was one. An exception before any
    sharded program ran is raised.
    """
    script_run, traces, notes = _run_and_trace(path, args, on_progress)
    config = read_config(path)
    visible = [replace(trace, findings=config.suppress(trace.findings)[0]) for trace in traces]
    # JAX traces a function again for each new argument type; equal traces are shown once.
    unique: dict[str, Trace] = {}
    for trace in visible:
        unique.setdefault(str(trace), trace)
    return sorted(unique.values(), key=_program_work, reverse=True), notes, script_run.ended


def _program_work(trace: Trace) -> tuple[int, int]:
    """Return what decides the order of programs: the train step first, initializers last."""
    return trace.wire_bytes, trace.flops or 0


def check_script(
    path: str, args: Sequence[str], *, on_progress: OnProgress = lambda text: None
) -> tuple[Report, BaseException | None]:
    """Run a script in simulated mode; return the findings of all its programs as one report.

    The second item is the exception that ended the script, as for `trace_script`.
    """
    script_run, traces, notes = _run_and_trace(path, args, on_progress)
    if traces:
        notes = (*notes, _ONE_MESH)
    report = _script_report(path, script_run, traces, notes)
    remaining, suppressed = read_config(path).suppress(report.findings)
    return replace(report, findings=remaining, suppressed=suppressed), script_run.ended


def _run_and_trace(
    path: str, args: Sequence[str], on_progress: OnProgress
) -> tuple[ScriptRun, list[Trace], tuple[str, ...]]:
    from shardlab.simulator.script_programs import run_script

    on_progress(f"running {path}")
    script_run = run_script(path, args)
    # Nothing was observed, so the exception is the only result there is.
    if script_run.ended is not None and not (script_run.programs or script_run.differing):
        raise script_run.ended
    traces, notes = [], []
    if script_run.deadlock is not None:
        notes.append("the script was stopped at a deadlock: real devices would block forever")
    for program in script_run.programs:
        on_progress(f"tracing {program.name}")
        try:
            traces.append(_trace_program(program, path))
        except LabError as error:
            notes.append(f"{program.name} was not traced: {error.what}")
    return script_run, traces, tuple(notes)


def _trace_program(program: ProgramRun, path: str) -> Trace:
    """Return a trace with all its findings, by the settings of the script's project."""
    from shardlab.tracing.observe import observe

    observation = observe(program.function, program.args, None)
    replicated_bytes = read_config(path).replicated_bytes
    return make_trace(observation, check_program(observation, replicated_bytes=replicated_bytes))


# ------------------------------------------------------------------------------------ the report


def _script_report(
    path: str, script_run: ScriptRun, traces: Sequence[Trace], notes: Sequence[str]
) -> Report:
    """Return the findings of all programs, and those of the run itself, as one report."""
    findings = [
        finding
        for trace in traces
        for finding in trace.findings
        if finding.code != "program.no_communication"
    ]
    findings += [_replicas_finding(*item) for item in script_run.differing]
    deadlock = script_run.deadlock
    # The trace reports the same deadlock with its line; the run knows only that it happened.
    has_deadlock = any(finding.code == "hazard.deadlock" for finding in findings)
    if deadlock is not None and not has_deadlock:
        findings.append(make_finding("hazard.deadlock", deadlock.what, None, deadlock.fix))
    if not any(trace.collectives for trace in traces) and not findings:
        findings.append(_no_communication_finding(path, traces))
    all_notes = [*(note for trace in traces for note in trace.notes), *notes]
    return Report(
        findings=most_severe_first(findings),
        program=path,
        meshes=tuple(dict.fromkeys(mesh_text(trace.mesh) for trace in traces if trace.mesh)),
        notes=tuple(dict.fromkeys(all_notes)),
        is_compared=False,
    )


def _replicas_finding(difference: ReplicaDifference, source: SourceLocation) -> Finding:
    """Return the finding for outputs of one shard_map whose replicas differed in the run."""
    return make_finding(
        "hazard.replicas_differ",
        difference.sentence[0].upper() + difference.sentence[1:],
        source,
        "reduce it over that mesh axis (psum, pmean), or shard it in out_specs.",
        shows=difference.value_lines,
        details={
            "mesh_axes": list(difference.mesh_axes),
            "outputs": list(difference.outputs),
        },
    )


def _no_communication_finding(path: str, traces: Sequence[Trace]) -> Finding:
    return make_finding(
        "program.no_communication",
        f"None of the {len(traces)} sharded programs that the script ran communicates."
        if traces
        else "The script ran no shard_map and no jit with shardings.",
        SourceLocation(path, 0),
        "check a function (file.py:function), or let the script run one step.",
    )
