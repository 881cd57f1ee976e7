"""Every finding of `check` and `trace`: its code, severity and title. Each has a page in docs/.

>>> quote_axes(("data", "model")), axes_argument(("data", "model")), axes_argument(("data",))
("'data', 'model'", "('data', 'model')", "'data'")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardlab.collectives.call import CollectiveCall
from shardlab.findings.finding import Finding, Severity
from shardlab.findings.source import SourceLocation


@dataclass(frozen=True)
class Code:
    """One kind of finding."""

    severity: Severity
    title: str


CODES = {
    # Programs that hang, or compute wrong values without an error.
    "hazard.deadlock": Code("error", "some devices never reach a collective"),
    "hazard.mismatched_collectives": Code("error", "devices call different collectives"),
    "hazard.replicas_differ": Code("error", "an output declared replicated differs by device"),
    "hazard.mesh_dependent": Code("error", "values or gradients depend on the mesh"),
    "hazard.psum_of_replicated": Code("warning", "a psum of a replicated value"),
    "hazard.ppermute_axis_order": Code("warning", "a ppermute whose axis order JAX may ignore"),
    "hazard.constraint_replicates": Code("warning", "a sharding constraint that does not shard"),
    # Specs that do not fit their arrays or the mesh.
    "spec.unknown_axis": Code("error", "a mesh axis that does not exist"),
    "spec.rank": Code("error", "a spec with more entries than the array has dimensions"),
    "spec.indivisible": Code("error", "a dimension that is not divisible by its shard count"),
    "spec.wrong_argument": Code("error", "a spec that fits another argument"),
    # Correct, but more expensive than necessary.
    "waste.replicated": Code("warning", "a large array replicated on every device"),
    "waste.all_gather_then_slice": Code("warning", "an all_gather of which only a slice is used"),
    "waste.psum_then_slice": Code("warning", "a psum of which only a slice is used"),
    "waste.loop_invariant_collective": Code(
        "warning", "a collective with the same operand in every loop iteration"
    ),
    # Programs that JAX itself rejects.
    "jax.rejected": Code("error", "a program that JAX rejects"),
    "ignore.invalid": Code("warning", "an ignore comment that suppresses nothing"),
    "program.no_communication": Code("info", "a program with nothing to check"),
}


def make_finding(
    code: str,
    what: str,
    where: SourceLocation | None,
    fix: str,
    *,
    cause: str = "",
    shows: tuple[str, ...] = (),
    details: Mapping[str, Any] | None = None,
) -> Finding:
    """Return a finding of a known code, with the severity of that code."""
    return Finding(
        code=code,
        severity=CODES[code].severity,
        what=what,
        where=where,
        fix=fix,
        cause=cause,
        shows=shows,
        details=details or {},
    )


def quote_axes(axes: Sequence[str]) -> str:
    """Return mesh axes in quotes: `'data'`, or `'data', 'model'`."""
    return ", ".join(f"'{axis}'" for axis in axes)


def axes_argument(axes: Sequence[str]) -> str:
    """Return mesh axes as a JAX call takes them: `'data'`, or `('data', 'model')`."""
    return quote_axes(axes) if len(axes) == 1 else f"({quote_axes(axes)})"


def call_text(call: CollectiveCall) -> str:
    """Return a call as text: `psum over 'data'`."""
    return f"{call.op} over {quote_axes(call.mesh_axes)}"
