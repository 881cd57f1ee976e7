"""All findings about one program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardlab.findings.finding import Finding, Severity
from shardlab.findings.source import SourceLocation

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

_GRAVEST_FIRST: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True)
class SuppressedFinding:
    """A finding that a person has silenced, and the reason they gave."""

    finding: Finding
    reason: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """The findings of `shardlab.check`, gravest first. Only errors make it not ok."""

    findings: tuple[Finding, ...]
    program: str = ""  # the name of what was checked
    meshes: tuple[str, ...] = ()  # each mesh it was checked on, as text
    notes: tuple[str, ...] = ()  # what was not checked, and why
    suppressed: tuple[SuppressedFinding, ...] = ()
    is_compared: bool = True  # False where it was to be run and nothing could be compared

    @property
    def ok(self) -> bool:
        return not self.of("error")

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        return tuple(found for found in self.findings if found.severity == severity)

    @property
    def codes(self) -> tuple[str, ...]:
        return tuple(found.code for found in self.findings)

    def __repr__(self) -> str:
        """Return one line; `print` shows all of it."""
        from shardlab.findings.report_text import summary_text

        return f"<Report of {summary_text(self)}>"

    def __str__(self) -> str:
        from shardlab.findings.report_text import report_text

        return report_text(self, excerpt=SourceLocation.quoted)

    def _repr_html_(self) -> str:
        from shardlab.findings.report_text import report_html

        return report_html(self, excerpt=SourceLocation.quoted)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from shardlab.findings.report_text import report_rich

        yield report_rich(self, options.max_width, SourceLocation.quoted)

    def to_json(self) -> dict[str, Any]:
        return {
            "program": self.program,
            "meshes": list(self.meshes),
            "ok": self.ok,
            "findings": [found.to_json() for found in self.findings],
            "suppressed": [
                {"finding": each.finding.to_json(), "reason": each.reason} for each in self.suppressed
            ],
            "notes": list(self.notes),
            "is_compared": self.is_compared,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        return cls(
            findings=tuple(map(Finding.from_json, data["findings"])),
            program=data["program"],
            meshes=tuple(data["meshes"]),
            notes=tuple(data["notes"]),
            suppressed=tuple(
                SuppressedFinding(Finding.from_json(each["finding"]), each["reason"])
                for each in data["suppressed"]
            ),
            is_compared=data.get("is_compared", True),
        )


def most_severe_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings in the order in which a person wants them, each once."""
    unique = {(f.code, f.where, f.what): f for f in findings}
    return tuple(sorted(unique.values(), key=lambda f: _GRAVEST_FIRST.index(f.severity)))
