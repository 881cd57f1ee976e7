"""A proven fix moves a finding without a cause to the line that it changes, and nothing else."""

from __future__ import annotations

import dataclasses

from shardlab.findings.explained_by_fix import explain_by_fix
from shardlab.findings.finding import Finding
from shardlab.findings.fix_search import Fix, FixSearch
from shardlab.findings.report import Report
from shardlab.findings.source import SourceLocation

FIX = Fix(
    what="bias added after the psum in line 9",
    family="term counted n times",
    file="train.py",
    line=9,
    diff="",
    start=0,
    end=0,
    text="",
    digest="",
    new_digest="",
    meshes=("data=2",),
    n_inputs=3,
    has_gradients=True,
)
UNKNOWN = Finding(
    code="hazard.mesh_dependent",
    severity="error",
    what="The output differs.",
    where=SourceLocation("train.py", 21, "step"),
    fix="check these collectives.",
)


def explained(*findings, fixes=(FIX,)):
    report = Report(findings=findings, program="step", fix_search=FixSearch(fixes=fixes))
    return explain_by_fix(report).findings


def test_an_unknown_cause_gets_the_line_and_the_words_of_the_fix():
    [finding] = explained(UNKNOWN)
    assert finding.where == SourceLocation("train.py", 9)
    assert FIX.what in finding.fix
    assert finding.what == UNKNOWN.what


def test_a_known_cause_a_second_error_and_a_report_without_a_fix_stay():
    known = dataclasses.replace(UNKNOWN, cause="factor_of_n")
    assert explained(known) == (known,)
    assert explained(UNKNOWN, UNKNOWN) == (UNKNOWN, UNKNOWN)
    assert explained(UNKNOWN, fixes=()) == (UNKNOWN,)
    assert explain_by_fix(Report(findings=(UNKNOWN,), program="step")).findings == (UNKNOWN,)
