"""What the findings say about a bug, for the families of edits: mesh axes, causes, lines."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from shardlab.findings.finding import Finding


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixHints:
    """The mesh axes to try, most likely first, with the codes and causes of the findings."""

    axes: tuple[tuple[str, ...], ...]
    codes: frozenset[str]
    causes: frozenset[str]
    lines: tuple[int, ...] = ()

    def distance(self, line: int) -> int:
        """Return how many lines away the nearest finding is."""
        return min((abs(line - item) for item in self.lines), default=0)


def hints_from_findings(
    findings: Sequence[Finding], mesh_axes: Sequence[str], file: str
) -> FixHints:
    """Return the hints of the errors, or of the warnings if there are no errors."""
    named: list[tuple[str, ...]] = []
    for finding in findings:
        for key in ("mesh_axes", "axes", "varies"):
            value = finding.details.get(key)
            if isinstance(value, (list, tuple)) and value:
                # Shard counts of some findings are lists of numbers.
                axes = tuple(axis for axis in value if axis in mesh_axes)
                named += [axes] if axes else []
    named += [(axis,) for axes in list(named) for axis in axes]
    named += [(axis,) for axis in mesh_axes]
    if len(mesh_axes) > 1:
        named.append(tuple(mesh_axes))
    places = [finding.where for finding in findings if finding.where is not None]
    return FixHints(
        axes=tuple(dict.fromkeys(named)),
        codes=frozenset(finding.code for finding in findings),
        causes=frozenset(finding.cause for finding in findings if finding.cause),
        lines=tuple(place.line for place in places if place.file.endswith(file)),
    )
