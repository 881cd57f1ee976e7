"""A whole script: every sharded program that it runs, traced and checked, each once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shardlab.analysis.project_config import read_config
from shardlab.checks.check_program import check_program
from shardlab.checks.script_report import script_report
from shardlab.errors import LabError
from shardlab.findings.report import Report
from shardlab.tracing.trace import Trace

if TYPE_CHECKING:
    from shardlab.simulator.script_programs import ProgramRun, ScriptRun

Tell = Callable[[str], None]

_ONE_MESH = (
    "A script runs on its own mesh only; to compare meshes, name a function (file.py:function)."
)


def trace_script(
    path: str, args: Sequence[str], *, on_progress: Tell = lambda text: None
) -> tuple[list[Trace], tuple[str, ...], BaseException | None]:
    """Run a script in simulated mode; return the trace of each program, and notes on the run.

    Last comes what ended the script, if it did not end well; what ended it before it had run
    anything is raised.
    """
    seen, traces, notes = _look(path, args, on_progress)
    config = read_config(path)
    shown = [replace(each, findings=config.silence(each.findings)[0]) for each in traces]
    return _each_once(shown), notes, seen.ended


def check_script(
    path: str, args: Sequence[str], *, on_progress: Tell = lambda text: None
) -> tuple[Report, BaseException | None]:
    """Run a script in simulated mode; return what is wrong with its programs as one report.

    With it comes what ended the script, as for `trace_script`.
    """
    seen, traces, notes = _look(path, args, on_progress)
    if traces:
        notes = (*notes, _ONE_MESH)
    report = script_report(
        path, traces, differing=seen.differing, deadlock=seen.deadlock, notes=notes
    )
    left, silenced = read_config(path).silence(report.findings)
    return replace(report, findings=left, silenced=silenced), seen.ended


def _each_once(traces: Sequence[Trace]) -> list[Trace]:
    """Return traces without those that say the same: JAX traces a function again for a new type."""
    known: dict[str, Trace] = {}
    for trace in traces:
        known.setdefault(str(trace), trace)
    return list(known.values())


def _look(
    path: str, args: Sequence[str], tell: Tell
) -> tuple[ScriptRun, list[Trace], tuple[str, ...]]:
    from shardlab.simulator.script_programs import run_script

    tell(f"running {path}")
    seen = run_script(path, args)
    if seen.ended is not None and not (seen.programs or seen.differing):
        raise seen.ended
    traces, notes = [], list(_notes(seen))
    for each in seen.programs:
        tell(f"tracing {each.name}")
        try:
            traces.append(_trace(each, path))
        except LabError as error:
            notes.append(f"{each.name} was not traced: {error.what}")
    return seen, traces, tuple(notes)


def _trace(program: ProgramRun, path: str) -> Trace:
    """Return a trace with all its findings; the script's own settings hold, not those of ours."""
    from shardlab.tracing.observe import observe

    seen = observe(program.function, program.args, None)
    findings = check_program(seen, replicated_bytes=read_config(path).replicated_bytes)
    return Trace(
        program=seen.program,
        mesh=seen.mesh,
        collectives=seen.calls,
        findings=findings,
        flops=seen.flops,
        memory=seen.memory,
        notes=seen.notes,
    )


def _notes(seen: ScriptRun) -> list[str]:
    """Return what a person should know of the run beside its programs."""
    notes = []
    if seen.deadlock is not None:
        notes.append("the script was stopped where real devices would have hung")
    return notes
