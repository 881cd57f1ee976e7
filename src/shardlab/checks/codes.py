"""Every finding there is: its code, how grave it is, and its name. Each has a page in docs/."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardlab.records.finding import Finding, Severity
from shardlab.records.source import Source


@dataclass(frozen=True)
class Code:
    """One kind of finding."""

    severity: Severity
    title: str


CODES = {
    # What hangs, or gives wrong numbers without a word.
    "hazard.deadlock": Code("error", "a collective that not all devices reach"),
    "hazard.mixed_collectives": Code("error", "devices meet in different collectives"),
    "hazard.replicas_differ": Code("error", "copies declared equal that are not"),
    "hazard.mesh_dependent": Code("error", "values or gradients that change with the mesh"),
    "hazard.psum_unvarying": Code("warning", "a sum of equal copies"),
    "hazard.ppermute_order": Code("warning", "a ppermute whose order of axes is ignored"),
    "hazard.constraint_replicates": Code("warning", "a constraint that replicates instead"),
    # Specs that do not fit.
    "spec.unknown_axis": Code("error", "a mesh axis that does not exist"),
    "spec.rank": Code("error", "a spec longer than its array has axes"),
    "spec.indivisible": Code("error", "an array axis that the mesh does not divide"),
    "spec.wrong_argument": Code("error", "a spec that fits another argument"),
    # Right, and dearer than need be.
    "waste.replicated": Code("warning", "a large array left whole on every device"),
    "waste.gather_then_slice": Code("warning", "an all-gather of which a slice is used"),
    "waste.psum_then_slice": Code("warning", "a psum of which a slice is used"),
    "waste.loop_invariant": Code("warning", "a collective that gives the same in every turn"),
    # What JAX says itself.
    "jax.refused": Code("error", "a program that JAX refuses"),
    "silence.unclear": Code("warning", "an ignore comment that silences nothing"),
    "program.no_communication": Code("info", "a program with nothing to check"),
}


def finding(
    code: str,
    what: str,
    where: Source | None,
    fix: str,
    *,
    cause: str = "",
    shows: tuple[str, ...] = (),
    details: Mapping[str, Any] | None = None,
) -> Finding:
    """Return a finding of a known code, with the severity of its kind."""
    return Finding(code, CODES[code].severity, what, where, fix, cause, shows, details or {})
