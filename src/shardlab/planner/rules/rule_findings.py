"""Findings about rules: the tensors concerned by name, number and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from shardlab._text.units import bytes_text, count_text
from shardlab.findings.finding import Finding, Severity
from shardlab.findings.source import SourceLocation
from shardlab.planner.findings.plan_finding_codes import PLAN_FINDING_CODES
from shardlab.planner.rules.path_search import RuleMatch

MAX_FINDINGS = 20  # shown for one code; the others are counted
_MAX_GROUPS = 8  # tensor groups listed below a finding


def limit_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the first findings of each code, and one that counts the rest."""
    by_code: dict[str, list[Finding]] = {}
    for finding in findings:
        by_code.setdefault(finding.code, []).append(finding)
    limited: list[Finding] = []
    for same_code in by_code.values():
        limited += same_code[:MAX_FINDINGS]
        if rest := same_code[MAX_FINDINGS:]:
            message = f"There are {len(rest):,} more findings of this kind."
            limited.append(replace(rest[0], what=message, where=None, fix="", shows=(), details={}))
    return tuple(limited)


def rule_finding(
    code: str,
    message: str,
    location: SourceLocation | None,
    fix: str,
    matches: Sequence[RuleMatch],
    *,
    severity: Severity | None = None,
    rule_number: int | None = None,
    rule_numbers: Sequence[int] = (),
    lines: Sequence[str] = (),
) -> Finding:
    """Return a finding about rules, with the tensors concerned below it, largest first."""
    by_size = sorted(matches, key=match_bytes, reverse=True)
    tensor_lines = [
        f"{match_name(match)}  {bytes_text(match_bytes(match))}" for match in by_size[:_MAX_GROUPS]
    ]
    if rest := by_size[_MAX_GROUPS:]:
        tensor_lines.append(f"and {len(rest)} more, {tensors_text(rest)}")
    details: dict[str, Any] = {
        "paths": [match.group.name for match in by_size],
        "bytes": sum(map(match_bytes, matches)),
    }
    if rule_number is not None:
        details["rule"] = rule_number + 1
    if rule_numbers:
        details["rules"] = [number + 1 for number in rule_numbers]
    return Finding(
        code=code,
        severity=severity or PLAN_FINDING_CODES[code].severity,
        what=message,
        where=location,
        fix=fix,
        shows=(*lines, *tensor_lines),
        details=details,
    )


def match_bytes(match: RuleMatch) -> int:
    """Return the bytes of all matched tensors, each counted once."""
    group = match.group
    return group.n_tensors * group.dtype.n_bytes(group.n_elements)


def match_name(match: RuleMatch) -> str:
    """Return the path with stars, and the number of tensors."""
    n_tensors = match.group.n_tensors
    return match.group.name + (f" ×{n_tensors:,}" if n_tensors > 1 else "")


def tensors_text(matches: Iterable[RuleMatch]) -> str:
    """Return the number of tensors and their bytes."""
    matches = list(matches)
    n_tensors = sum(match.group.n_tensors for match in matches)
    return f"{count_text(n_tensors, 'tensor')} ({bytes_text(sum(map(match_bytes, matches)))})"


def join_names(names: Iterable[str]) -> str:
    """Return names as in a sentence.

    >>> join_names(["a", "b", "c"])
    'a, b and c'
    """
    items = list(names)
    return " and ".join(filter(None, (", ".join(items[:-1]), *items[-1:])))


def capitalize_first(text: str) -> str:
    """Return text with its first letter in upper case."""
    return text[0].upper() + text[1:]
