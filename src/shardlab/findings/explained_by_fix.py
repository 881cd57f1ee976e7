"""A proven fix as the explanation of a finding whose cause the values alone did not show."""

from __future__ import annotations

from dataclasses import replace

from shardlab.findings.finding import Finding
from shardlab.findings.fix_search import Fix
from shardlab.findings.report import Report
from shardlab.findings.source import SourceLocation

_CODES = ("hazard.mesh_dependent", "hazard.replicas_differ")


def explain_by_fix(report: Report) -> Report:
    """Return the report in which a finding without a cause names the line that the fix changes.

    Only if it is the single error: which of several the fix repairs is not known.
    """
    search = report.fix_search
    errors = report.with_severity("error")
    if search is None or not search.fixes or len(errors) != 1:
        return report
    if errors[0].code not in _CODES or errors[0].cause:
        return report
    explained = _explained(errors[0], search.fixes[0])
    findings = tuple(explained if item is errors[0] else item for item in report.findings)
    return replace(report, findings=findings)


def _explained(finding: Finding, fix: Fix) -> Finding:
    return replace(
        finding,
        where=SourceLocation(fix.file, fix.line),
        fix=f"the fix below, with which every value is right on every mesh: {fix.what}.",
    )
