"""The result of comparing runs of one program: findings, and notes about what was not compared."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardlab.findings.finding import Finding

# Added to a finding about a program that was changed before it ran.
_REWRITE_LINES = {
    "float32": "computed in float32 in place of narrower types, whose rounding is larger than this "
    "difference",
    "fixed_draws": "computed with constants in place of random numbers, which differ by design: "
    "each device has its own key",
}


@dataclass(frozen=True)
class RunComparison:
    """Findings and notes from comparing runs."""

    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    # Some outputs were not compared, because each device draws its own random numbers.
    has_own_draws: bool = False
    # Of the notes, those about outputs or gradients that were not compared.
    uncompared: tuple[str, ...] = ()

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

    def of_rewritten(self, rewrite: str) -> RunComparison:
        """Return the comparison, where each finding says what was changed before the runs."""
        line = _REWRITE_LINES[rewrite]
        findings = (replace(item, shows=(*item.shows, line)) for item in self.findings)
        return replace(self, findings=tuple(findings))

    def explained_by(self, wider: RunComparison) -> RunComparison:
        """Return the comparison on more meshes if it identifies a cause; else this one."""
        return self if wider.is_unexplained or not wider.findings else wider
