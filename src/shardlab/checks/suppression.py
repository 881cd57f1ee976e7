"""Findings that a user suppresses, with a reason.

In a comment on the line of a finding or on the line above, or in the configuration:

    y = lax.psum(x, "data")  # shardlab: ignore[hazard.psum_of_replicated] divided out in loss()
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from shardlab._text.nearest import nearest_name
from shardlab.checks.check_codes import CODES, make_finding
from shardlab.findings.finding import Finding
from shardlab.findings.report import SuppressedFinding, most_severe_first
from shardlab.findings.source import SourceLocation

# Matches invalid forms too (no code, no reason), so that they can be reported.
_COMMENT = re.compile(r"#\s*shardlab:\s*ignore\b(?:\[(?P<codes>[^\]]*)\])?[\s:,-]*(?P<reason>.*)$")


@dataclass(frozen=True)
class IgnoreRule:
    """One entry of the configuration: a code, the files it applies to, and the reason."""

    code: str
    reason: str
    path: str = "*"

    def matches(self, finding: Finding, relative_path: str) -> bool:
        """Return whether this rule suppresses a finding in a file."""
        return finding.code == self.code and (self.path == "*" or fnmatch(relative_path, self.path))


@dataclass(frozen=True)
class IgnoreComment:
    """An ignore comment: its codes, its reason, and what is wrong with it, if anything."""

    codes: tuple[str, ...]
    reason: str
    problem: str = ""


def parse_ignore_comment(line: str) -> IgnoreComment | None:
    """Return the ignore comment of a source line.

    >>> parse_ignore_comment("x = f(x)  # shardlab: ignore[waste.replicated] fits in memory")
    IgnoreComment(codes=('waste.replicated',), reason='fits in memory', problem='')
    >>> parse_ignore_comment("x = f(x)  # shardlab: ignore[waste.replicated]").problem
    'gives no reason'
    >>> parse_ignore_comment("x = f(x)  # shardlab: ignore[waste.replicate] it fits").problem
    "has the unknown code 'waste.replicate'. Did you mean 'waste.replicated'?"
    """
    match = _COMMENT.search(line)
    if match is None:
        return None
    codes = tuple(code.strip() for code in (match["codes"] or "").split(",") if code.strip())
    reason = match["reason"].strip()
    if not codes:
        return IgnoreComment(codes, reason, "names no code")
    for code in codes:
        if code not in CODES:
            suggestion = nearest_name(code, CODES)
            hint = f". Did you mean '{suggestion}'?" if suggestion else ""
            return IgnoreComment(codes, reason, f"has the unknown code '{code}'{hint}")
    return IgnoreComment(codes, reason, "" if reason else "gives no reason")


def suppress_findings(
    findings: Iterable[Finding],
    read_line: Callable[[SourceLocation], str],
    rules: Sequence[IgnoreRule] = (),
    relative_path: Callable[[str], str] = lambda file: file,
) -> tuple[tuple[Finding, ...], tuple[SuppressedFinding, ...]]:
    """Return the findings that remain, and those that are suppressed.

    `read_line` returns the text of a source line, `relative_path` a file's path relative to the
    configuration file. An invalid comment suppresses nothing and is a finding itself.
    """
    remaining: list[Finding] = []
    suppressed: list[SuppressedFinding] = []
    for finding in findings:
        comments = _find_comments(finding.where, read_line) if finding.where else []
        reasons = [
            comment.reason
            for _, comment in comments
            if not comment.problem and finding.code in comment.codes
        ]
        file = relative_path(finding.where.file) if finding.where else ""
        reasons += [rule.reason for rule in rules if rule.matches(finding, file)]
        if reasons:
            suppressed.append(SuppressedFinding(finding, reasons[0]))
        else:
            remaining.append(finding)
            remaining += [
                _invalid_comment_finding(location, comment, finding.code)
                for location, comment in comments
                if comment.problem
            ]
    return most_severe_first(remaining), tuple(suppressed)


def _find_comments(
    where: SourceLocation, read_line: Callable[[SourceLocation], str]
) -> list[tuple[SourceLocation, IgnoreComment]]:
    """Return the comments on a line, and on the line above if it has only a comment."""
    locations = [where]
    above = SourceLocation(where.file, where.line - 1, where.function)
    # A comment behind code on the line above belongs to that code.
    if read_line(above).lstrip().startswith("#"):
        locations.append(above)
    comments = [(location, parse_ignore_comment(read_line(location))) for location in locations]
    return [(location, comment) for location, comment in comments if comment is not None]


def _invalid_comment_finding(
    location: SourceLocation, comment: IgnoreComment, code: str
) -> Finding:
    return make_finding(
        "ignore.invalid",
        f"This ignore comment suppresses nothing: it {comment.problem}"
        + ("" if comment.problem.endswith("?") else "."),
        location,
        f"write it as # shardlab: ignore[{code}] with the reason after it",
    )
