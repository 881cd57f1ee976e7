"""The result of comparing runs of one program: findings, and notes about what was not compared."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardlab.findings.finding import Finding

_IN_FLOAT32 = (
    "computed in float32 in place of narrower types, whose rounding is larger than this difference"
)


@dataclass(frozen=True)
class RunComparison:
    """Findings and notes from comparing runs."""

    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Return whether all runs gave the same results."""
        return not any(finding.code.startswith("hazard.") for finding in self.findings)

    @property
    def is_unexplained(self) -> bool:
        """Return whether results depend on the mesh for no known cause."""
        return any(
            finding.code == "hazard.mesh_dependent"
            and not finding.cause
            and finding.details["reference"] in ("one device", "the reference")
            and finding.details["kind"] == "output"
            for finding in self.findings
        )

    def in_float32(self) -> RunComparison:
        """Return the comparison, where each finding says that it is of float32 values."""
        return replace(self, findings=tuple(map(_as_float32, self.findings)))

    def explained_by(self, wider: RunComparison) -> RunComparison:
        """Return the comparison on more meshes if it identifies a cause; else this one."""
        return self if wider.is_unexplained or not wider.findings else wider


def _as_float32(finding: Finding) -> Finding:
    return replace(finding, shows=(*finding.shows, _IN_FLOAT32))
