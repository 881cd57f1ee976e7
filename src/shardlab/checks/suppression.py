"""Which findings has a person silenced, and with what reason?

On the line of a finding or the line above, or in the configuration:

    y = lax.psum(x, "data")  # shardlab: ignore[hazard.psum_of_replicated] divided out in loss()
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from shardlab.checks.check_codes import CODES, finding
from shardlab.findings.finding import Finding
from shardlab.findings.report import SuppressedFinding, most_severe_first
from shardlab.findings.source import SourceLocation

_COMMENT = re.compile(r"#\s*shardlab:\s*ignore\b(?:\[(?P<codes>[^\]]*)\])?[\s:,-]*(?P<reason>.*)$")


@dataclass(frozen=True)
class IgnoreRule:
    """One entry of the configuration: a code, the files it holds for, and the reason."""

    code: str
    reason: str
    path: str = "*"

    def covers(self, found: Finding, relative: str) -> bool:
        """Say whether a finding in a file, named from the configuration's folder, is meant."""
        return found.code == self.code and (self.path == "*" or fnmatch(relative, self.path))


@dataclass(frozen=True)
class Comment:
    """An ignore comment as written: codes, a reason, and what is wrong with it, if anything."""

    codes: tuple[str, ...]
    reason: str
    trouble: str = ""


def read_comment(line: str) -> Comment | None:
    """Return the ignore comment of a source line.

    >>> read_comment("x = f(x)  # shardlab: ignore[waste.replicated] fits in memory")
    Comment(codes=('waste.replicated',), reason='fits in memory', trouble='')
    >>> read_comment("x = f(x)  # shardlab: ignore[waste.replicated]").trouble
    'gives no reason'
    >>> read_comment("x = f(x)  # shardlab: ignore[waste.replicate] it fits").trouble
    "names 'waste.replicate', which is no code; did you mean 'waste.replicated'?"
    """
    found = _COMMENT.search(line)
    if found is None:
        return None
    codes = tuple(code.strip() for code in (found["codes"] or "").split(",") if code.strip())
    reason = found["reason"].strip()
    if not codes:
        return Comment(codes, reason, "names no code")
    for code in codes:
        if code not in CODES:
            return Comment(codes, reason, f"names '{code}', which is no code{_nearest(code)}")
    return Comment(codes, reason, "" if reason else "gives no reason")


def _nearest(code: str) -> str:
    close = difflib.get_close_matches(code, CODES, n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def suppress_findings(
    findings: Iterable[Finding],
    line_of: Callable[[SourceLocation], str],
    ignores: Sequence[IgnoreRule] = (),
    relative: Callable[[str], str] = lambda file: file,
) -> tuple[tuple[Finding, ...], tuple[SuppressedFinding, ...]]:
    """Return the findings that are left, and those that were silenced.

    `line_of` gives the text of a source line, `relative` a file's name as the configuration's
    paths mean it. A comment that is not understood silences nothing, and is a finding itself.
    """
    left: list[Finding] = []
    silenced: list[SuppressedFinding] = []
    for found in findings:
        comments = _comments(found.where, line_of) if found.where else []
        reasons = [c.reason for _, c in comments if not c.trouble and found.code in c.codes]
        file = relative(found.where.file) if found.where else ""
        reasons += [each.reason for each in ignores if each.covers(found, file)]
        if reasons:
            silenced.append(SuppressedFinding(found, reasons[0]))
        else:
            left.append(found)
            left += [_unclear(place, c, found.code) for place, c in comments if c.trouble]
    return most_severe_first(left), tuple(silenced)


def _comments(
    where: SourceLocation, line_of: Callable[[SourceLocation], str]
) -> list[tuple[SourceLocation, Comment]]:
    """Return the comments on a line and on the line above, if that is nothing but a comment."""
    above = SourceLocation(where.file, where.line - 1, where.function)
    found = [(where, read_comment(line_of(where)))]
    if line_of(above).lstrip().startswith("#"):
        found.append((above, read_comment(line_of(above))))
    return [(place, comment) for place, comment in found if comment is not None]


def _unclear(place: SourceLocation, comment: Comment, code: str) -> Finding:
    return finding(
        "ignore.invalid",
        f"An ignore comment {comment.trouble}; it silences nothing.",
        place,
        f"write it as # shardlab: ignore[{code}] why it is meant so",
    )
