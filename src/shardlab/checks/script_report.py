"""A whole script: what was found in each of its programs, and what its run has shown."""

from __future__ import annotations

from collections.abc import Sequence

from shardlab.checks.check_codes import finding
from shardlab.errors import Deadlock
from shardlab.findings.finding import Finding
from shardlab.findings.report import Report, most_severe_first
from shardlab.findings.source import SourceLocation
from shardlab.tracing.trace import Trace


def script_report(
    program: str,
    traces: Sequence[Trace],
    *,
    differing: Sequence[tuple[str, SourceLocation]] = (),
    deadlock: Deadlock | None = None,
    notes: Sequence[str] = (),
) -> Report:
    """Return the findings of all programs as one report.

    `differing` are the outputs whose copies differed when the script ran: what was said, and where.
    """
    found = [each for trace in traces for each in trace.findings]
    found = [each for each in found if each.code != "program.no_communication"]
    found += [_differing(words, source) for words, source in differing]
    if deadlock is not None and not any(each.code == "hazard.deadlock" for each in found):
        found.append(finding("hazard.deadlock", deadlock.what, None, deadlock.fix))
    if not any(trace.collectives for trace in traces) and not found:
        found.append(_nothing(program, traces))
    meshes = dict.fromkeys(",".join(f"{n}={s}" for n, s in t.mesh) for t in traces if t.mesh)
    said = dict.fromkeys([*(note for trace in traces for note in trace.notes), *notes])
    return Report(
        findings=most_severe_first(found), program=program, meshes=tuple(meshes), notes=tuple(said)
    )


def _differing(words: str, source: SourceLocation) -> Finding:
    """Return a finding from what the simulation said: a sentence, values by device, a way out."""
    what, *lines = words.splitlines()
    shows = tuple(line.strip() for line in lines if not line.strip().startswith("try:"))
    fix = "sum or average it over that axis (psum, pmean), or shard it in out_specs."
    return finding("hazard.replicas_differ", what[0].upper() + what[1:], source, fix, shows=shows)


def _nothing(program: str, traces: Sequence[Trace]) -> Finding:
    what = (
        f"None of the {len(traces)} sharded programs that it ran communicates."
        if traces
        else "The script ran no shard_map and no jit with shardings."
    )
    return finding(
        "program.no_communication",
        what,
        SourceLocation(program, 0),
        "name a function (file.py:function), or let the script run one step when it is started.",
    )
