"""The finding: one problem of a program or a plan, where it is, and how to fix it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from shardlab.errors import quote_text
from shardlab.findings.source import SourceLocation

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem, with the parts of an error: code, what, where, fix.

    >>> location = SourceLocation("a.py", 3)
    >>> print(Finding(code="spec.rank", severity="error", what="Too long.", where=location))
    error [spec.rank] Too long.
      where: a.py:3

    `cause` is a known cause if there is one, such as factor_of_n. `shows` is evidence: lines such
    as values by device, or JAX's own message.
    """

    code: str
    severity: Severity
    what: str
    where: SourceLocation | None = None
    fix: str = ""
    cause: str = ""
    shows: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # These quote names from the user's files, and go to terminals and pages.
        for name in ("what", "fix"):
            object.__setattr__(self, name, quote_text(getattr(self, name)))
        object.__setattr__(self, "shows", tuple(map(quote_text, self.shows)))

    def __str__(self) -> str:
        lines = [f"{self.severity} [{self.code}] {self.what}"]
        if self.where:
            lines.append(f"  where: {self.where}")
        lines += [f"    {line}" for line in self.shows]
        if self.fix:
            lines.append(f"  try:   {self.fix}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": self.severity,
            "what": self.what,
            "where": self.where.to_json() if self.where else None,
            "fix": self.fix,
            "cause": self.cause,
            "shows": list(self.shows),
            "details": dict(self.details),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        return cls(
            code=data["code"],
            severity=data["severity"],
            what=data["what"],
            where=SourceLocation.from_json(data["where"]) if data["where"] else None,
            fix=data["fix"],
            cause=data["cause"],
            shows=tuple(data["shows"]),
            details=data["details"],
        )
