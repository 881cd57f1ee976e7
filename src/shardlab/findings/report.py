"""The report: all findings about one program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardlab.findings.finding import Finding, Severity
from shardlab.findings.fix_search import FixSearch
from shardlab.findings.scaled_proof import ScaledProof
from shardlab.findings.source import SourceLocation

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

_SEVERITY_ORDER: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True)
class SuppressedFinding:
    """A finding that the user has suppressed, with the reason they gave."""

    finding: Finding
    reason: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """The findings of `shardlab.check`, most severe first; only errors make it not `ok`."""

    findings: tuple[Finding, ...]
    program: str = ""  # name of the checked program
    meshes: tuple[str, ...] = ()  # the meshes it was checked on, as text
    notes: tuple[str, ...] = ()  # what was not checked, and the reason
    suppressed: tuple[SuppressedFinding, ...] = ()
    # False if its values should have been compared, with one device or a reference, but were not.
    is_compared: bool = True
    fix_search: FixSearch | None = None  # of `check --fix`
    scaled: tuple[ScaledProof, ...] = ()  # meshes that were checked on scaled-down ones

    @property
    def ok(self) -> bool:
        return not self.with_severity("error")

    def with_severity(self, severity: Severity) -> tuple[Finding, ...]:
        """Return the findings of one severity."""
        return tuple(finding for finding in self.findings if finding.severity == severity)

    @property
    def codes(self) -> tuple[str, ...]:
        return tuple(finding.code for finding in self.findings)

    def __repr__(self) -> str:
        """Return a one-line summary; `print` shows the full report."""
        # Renderers are imported when used: a report travels between processes that print nothing.
        from shardlab.findings.report_text import summary_text

        return f"<Report of {summary_text(self)}>"

    def __str__(self) -> str:
        from shardlab.findings.report_text import report_text

        return report_text(self, excerpt=SourceLocation.read_line)

    def _repr_html_(self) -> str:
        from shardlab.findings.report_text import report_html

        return report_html(self, excerpt=SourceLocation.read_line)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from shardlab.findings.report_text import report_rich

        yield report_rich(self, options.max_width, SourceLocation.read_line)

    def to_json(self) -> dict[str, Any]:
        return {
            "program": self.program,
            "meshes": list(self.meshes),
            "ok": self.ok,
            "findings": [finding.to_json() for finding in self.findings],
            "suppressed": [
                {"finding": item.finding.to_json(), "reason": item.reason}
                for item in self.suppressed
            ],
            "notes": list(self.notes),
            "is_compared": self.is_compared,
            **({"scaled": [proof.to_json() for proof in self.scaled]} if self.scaled else {}),
            **({} if self.fix_search is None else {"fix_search": self.fix_search.to_json()}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        return cls(
            findings=tuple(map(Finding.from_json, data["findings"])),
            program=data["program"],
            meshes=tuple(data["meshes"]),
            notes=tuple(data["notes"]),
            suppressed=tuple(
                SuppressedFinding(Finding.from_json(item["finding"]), item["reason"])
                for item in data["suppressed"]
            ),
            is_compared=data.get("is_compared", True),
            fix_search=FixSearch.from_json(data["fix_search"]) if data.get("fix_search") else None,
            scaled=tuple(map(ScaledProof.from_json, data.get("scaled", ()))),
        )


def most_severe_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings sorted by severity, without duplicates; the order is stable otherwise."""
    # A pattern inside a loop body or a repeated layer gives the same finding many times.
    unique = {(finding.code, finding.where, finding.what): finding for finding in findings}
    return tuple(
        sorted(unique.values(), key=lambda finding: _SEVERITY_ORDER.index(finding.severity))
    )
