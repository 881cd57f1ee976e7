"""The words of rule lint: tensors by name, number and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from shardlab._text.units import bytes_text
from shardlab.findings.finding import Finding, Severity
from shardlab.findings.source import SourceLocation
from shardlab.planner.findings.codes import CODES
from shardlab.planner.rules.path_search import RuleMatch

MOST_SHOWN = 20  # findings of one code; the others are counted
_SHOWN = 8  # families beneath a finding


def first_of_each(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the first findings of each code, and how many more there are of it."""
    by_code: dict[str, list[Finding]] = {}
    for each in findings:
        by_code.setdefault(each.code, []).append(each)
    shown: list[Finding] = []
    for same in by_code.values():
        shown += same[:MOST_SHOWN]
        if rest := same[MOST_SHOWN:]:
            what = f"There are {len(rest):,} more findings of this kind."
            shown.append(replace(rest[0], what=what, where=None, fix="", shows=(), details={}))
    return tuple(shown)


def rule_finding(
    code: str,
    what: str,
    place: SourceLocation | None,
    fix: str,
    parts: Sequence[RuleMatch],
    *,
    severity: Severity | None = None,
    rule: int | None = None,
    rules: Sequence[int] = (),
    shows: Sequence[str] = (),
) -> Finding:
    """Return a finding about rules with the tensors that it is about beneath, largest first."""
    largest = sorted(parts, key=bytes_of, reverse=True)
    lines = [f"{name_of(each)}  {bytes_text(bytes_of(each))}" for each in largest[:_SHOWN]]
    if len(largest) > _SHOWN:
        lines.append(f"and {len(largest) - _SHOWN} more, {amount_of(largest[_SHOWN:])}")
    details: dict[str, Any] = {
        "paths": [each.group.name for each in largest],
        "bytes": sum(map(bytes_of, parts)),
    }
    if rule is not None:
        details["rule"] = rule + 1
    if rules:
        details["rules"] = [number + 1 for number in rules]
    return Finding(
        code=code,
        severity=severity or CODES[code].severity,
        what=what,
        where=place,
        fix=fix,
        shows=(*shows, *lines),
        details=details,
    )


def bytes_of(found: RuleMatch) -> int:
    """Return the bytes of all its tensors, each counted once."""
    group = found.group
    return group.n_tensors * group.dtype.n_bytes(group.n_elements)


def name_of(found: RuleMatch) -> str:
    """Return the path with stars, and how many tensors have it."""
    n = found.group.n_tensors
    return found.group.name + (f" ×{n:,}" if n > 1 else "")


def amount_of(parts: Iterable[RuleMatch]) -> str:
    """Return how many tensors, and their bytes."""
    parts = list(parts)
    n = sum(each.group.n_tensors for each in parts)
    return f"{n:,} tensor{'s' * (n != 1)} ({bytes_text(sum(map(bytes_of, parts)))})"


def listed(names: Iterable[str]) -> str:
    """Return names as a sentence has them.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    each = list(names)
    return " and ".join(filter(None, (", ".join(each[:-1]), *each[-1:])))


def upper(text: str) -> str:
    """Return text as a sentence begins."""
    return text[0].upper() + text[1:]
