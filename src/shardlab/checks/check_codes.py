"""Every finding of `check` and `trace`: its code, severity and title. Each has a page in docs/.

>>> quote_axes(("data", "model")), axes_argument(("data", "model")), axes_argument(("data",))
("'data', 'model'", "('data', 'model')", "'data'")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardlab.collectives.call import CollectiveCall
from shardlab.findings import codes
from shardlab.findings.codes import FindingCode
from shardlab.findings.finding import Finding
from shardlab.findings.source import SourceLocation, written_name

CODES = {
    # Programs that hang, or compute wrong values without an error.
    "hazard.deadlock": FindingCode("error", "some devices never reach a collective"),
    "hazard.mismatched_collectives": FindingCode("error", "devices call different collectives"),
    "hazard.replicas_differ": FindingCode(
        "error", "an output declared replicated differs by device"
    ),
    "hazard.mesh_dependent": FindingCode("error", "values or gradients depend on the mesh"),
    "hazard.psum_of_replicated": FindingCode("warning", "a psum of a replicated value"),
    "hazard.ppermute_axis_order": FindingCode(
        "warning", "a ppermute whose axis order JAX may ignore"
    ),
    "hazard.constraint_replicates": FindingCode(
        "warning", "a sharding constraint that does not shard"
    ),
    # Specs that do not fit their arrays or the mesh.
    "spec.unknown_axis": FindingCode("error", "a mesh axis that does not exist"),
    "spec.rank": FindingCode("error", "a spec with more entries than the array has dimensions"),
    "spec.indivisible": FindingCode(
        "error", "a dimension that is not divisible by its shard count"
    ),
    "spec.wrong_argument": FindingCode("error", "a spec that fits another argument"),
    # Correct, but more expensive than necessary.
    "waste.replicated": FindingCode("warning", "a large array replicated on every device"),
    "waste.all_gather_then_slice": FindingCode(
        "warning", "an all_gather of which only a slice is used"
    ),
    "waste.psum_then_slice": FindingCode("warning", "a psum of which only a slice is used"),
    "waste.loop_invariant_collective": FindingCode(
        "warning", "a collective with the same operand in every loop iteration"
    ),
    # Programs that JAX itself rejects.
    "jax.rejected": FindingCode("error", "a program that JAX rejects"),
    "ignore.invalid": FindingCode("warning", "an ignore comment that suppresses nothing"),
    "program.no_communication": FindingCode("info", "a program with nothing to check"),
}


def make_finding(
    code: str, sentence: str, where: SourceLocation | None, fix: str, **parts: Any
) -> Finding:
    """Return a finding with the severity of its code; `parts` are cause, shows and details."""
    return codes.make_finding(CODES, code, sentence, where, fix, **parts)


def quote_axes(axes: Sequence[str]) -> str:
    """Return mesh axes in quotes: `'data'`, or `'data', 'model'`."""
    return ", ".join(f"'{axis}'" for axis in axes)


def axes_argument(axes: Sequence[str]) -> str:
    """Return mesh axes as a JAX call takes them: `'data'`, or `('data', 'model')`."""
    return quote_axes(axes) if len(axes) == 1 else f"({quote_axes(axes)})"


def call_text(call: CollectiveCall) -> str:
    """Return a call as text: `psum over 'data'`."""
    return f"{written_name(call.op, call.source)} over {quote_axes(call.mesh_axes)}"
