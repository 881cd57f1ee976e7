"""The findings of `shardlab check` for a recorded program, with their place in its sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from shardlab.checks.check_program import check_program
from shardlab.errors import LabError
from shardlab.findings.finding import Finding
from shardlab.recording.program_sources import ProgramSources
from shardlab.recording.step_records import RecordedFinding
from shardlab.sharding.mesh import Mesh
from shardlab.tracing.observe import observe_staged
from shardlab.tracing.stage import StagedProgram

FindingsDetail = Literal["none", "static", "full"]


def find_problems(
    function: Callable[..., Any],
    args: Sequence[Any],
    staged: StagedProgram,
    detail: FindingsDetail,
    sources: ProgramSources,
) -> tuple[RecordedFinding, ...]:
    """Return what the checks find: those that need no run, or also those that compare runs."""
    if detail == "none":
        return ()
    try:
        findings: Sequence[Finding]
        if detail == "full" and staged.mesh is not None:
            # Imported here: it loads everything that runs and compares programs.
            from shardlab.analysis.trace_and_check import check

            mesh = Mesh(list(staged.sizes))
            findings = check(function, *args, mesh=mesh).findings
        else:
            findings = check_program(observe_staged(staged, compiler_use="never"))
    except LabError:
        return ()  # the recording is there; what cannot be checked has no findings
    return tuple(
        place_finding(finding, sources)
        for finding in findings
        if finding.code != "program.no_communication"
    )


def place_finding(finding: Finding, sources: ProgramSources) -> RecordedFinding:
    """Return a finding with the number of its file among the sources."""
    file, line = -1, 0
    if finding.where is not None and sources.is_own(finding.where.file):
        file, line = sources.number(finding.where.file), finding.where.line
    return RecordedFinding(
        code=finding.code,
        severity=finding.severity,
        message=finding.what,
        fix=finding.fix,
        cause=finding.cause,
        shows=finding.shows,
        file=file,
        line=line,
    )
