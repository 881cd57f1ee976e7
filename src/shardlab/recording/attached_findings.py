"""The findings of `shardlab check` for a recorded program, with their place in its sources."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax

from shardlab.checks.check_program import check_program
from shardlab.errors import LabError
from shardlab.findings.finding import Finding
from shardlab.recording.program_sources import ProgramSources
from shardlab.recording.step_records import RecordedFinding
from shardlab.sharding.mesh import Mesh, mesh_text
from shardlab.tracing.observe import observe_staged
from shardlab.tracing.stage import StagedProgram

FindingsDetail = Literal["none", "static", "full"]


# A program whose arguments are larger than this is checked without running it again.
MAX_COMPARED_BYTES = 2**26


def find_problems(
    function: Callable[..., Any],
    args: Sequence[Any],
    staged: StagedProgram,
    detail: FindingsDetail,
    sources: ProgramSources,
) -> tuple[tuple[RecordedFinding, ...], tuple[str, ...]]:
    """Return what the checks find, and notes on what they cannot decide.

    The static checks need no run; the full ones also compare the values with those of one device.
    """
    if detail == "none":
        return (), ()
    findings: Sequence[Finding] | None = None
    if detail == "full" and staged.mesh is not None:
        findings = _compare_with_one_device(function, args, Mesh(list(staged.sizes)))
    if findings is None:
        try:
            findings = check_program(observe_staged(staged, compiler_use="never"))
        except LabError:
            return (), ()  # the recording is there; what cannot be checked has no findings
    notes = [_mesh_note(staged) for finding in findings if _may_be_meant(finding)][:1]
    return tuple(
        place_finding(finding, sources)
        for finding in findings
        if finding.code != "program.no_communication" and not _may_be_meant(finding)
    ), tuple(notes)


def _compare_with_one_device(
    function: Callable[..., Any], args: Sequence[Any], mesh: Mesh
) -> Sequence[Finding] | None:
    # Imported here: it loads everything that runs and compares programs.
    from shardlab.analysis.trace_and_check import check

    try:
        # What the program prints is in the recording already.
        with contextlib.redirect_stdout(io.StringIO()):
            findings = check(function, *args, mesh=mesh).findings
            jax.effects_barrier()
            return findings
    except Exception:
        # A program need not run on one device, where it may raise whatever it likes.
        return None


def _may_be_meant(finding: Finding) -> bool:
    """Return whether a result depends on the mesh for no known cause: as a pipeline's may."""
    return finding.code == "hazard.mesh_dependent" and not finding.cause


def _mesh_note(staged: StagedProgram) -> str:
    return (
        f"The result on {mesh_text(staged.sizes)} differs from the result on one device. That is "
        "an error, unless the program is meant to depend on the mesh, as a pipeline with one layer "
        "for each device does."
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
