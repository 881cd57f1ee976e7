"""Finding codes: the severity and title of each kind of finding, and findings made from them.

Each package that reports findings has one table of codes; every code has a page in docs/findings.

>>> codes = {"waste.replicated": FindingCode("warning", "a large array replicated on every device")}
>>> make_finding(codes, "waste.replicated", "'w' is replicated.", fix="shard it.").severity
'warning'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardlab.findings.finding import Finding, Severity
from shardlab.findings.source import SourceLocation


@dataclass(frozen=True)
class FindingCode:
    """One kind of finding: how severe it is, and a short title for tables."""

    severity: Severity
    title: str


def make_finding(
    codes: Mapping[str, FindingCode],
    code: str,
    what: str,
    where: SourceLocation | None = None,
    fix: str = "",
    *,
    cause: str = "",
    shows: tuple[str, ...] = (),
    details: Mapping[str, Any] | None = None,
) -> Finding:
    """Return a finding with the severity of its code; raises KeyError for an unknown code."""
    return Finding(
        code=code,
        severity=codes[code].severity,
        what=what,
        where=where,
        fix=fix,
        cause=cause,
        shows=shows,
        details=details or {},
    )
