"""What a check found: one sentence about the program, where, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from shardlab.errors import quote_text
from shardlab.findings.source import SourceLocation

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding, in the parts of an error: code, what, where, fix.

    >>> print(Finding("hazard.deadlock", "error", "Devices part.", SourceLocation("a.py", 3), "Do not."))
    error [hazard.deadlock] Devices part.
      where: a.py:3
      try:   Do not.
    """

    code: str
    severity: Severity
    what: str
    where: SourceLocation | None = None
    fix: str = ""
    cause: str = ""  # a named cause where there is one, such as factor_of_n
    # Lines shown beneath, such as values by device or JAX's own words.
    shows: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Names out of a person's files stand in these, and go to terminals and pages.
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
