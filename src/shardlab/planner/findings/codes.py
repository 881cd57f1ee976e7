"""Every finding about plans and rules: its code, how grave it is, and its name. Each has a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardlab.findings.finding import Finding, Severity


@dataclass(frozen=True)
class Code:
    """One kind of finding; its page is docs/findings/<code>.md."""

    severity: Severity
    title: str


CODES = {
    "plan.does_not_fit": Code("error", "a device that holds more than its chip has room for"),
    "plan.indivisible": Code("error", "an array axis that the mesh does not divide"),
    "plan.replicated": Code("warning", "large tensors left whole on every device"),
    "plan.unsharded": Code("warning", "a strategy that could not cut what it meant to"),
    "plan.unused_mesh_axis": Code("warning", "a mesh axis that cuts nothing"),
    "plan.kv_heads_replicated": Code("warning", "fewer kv heads than the tensor axis has devices"),
    "plan.embedding_sharding": Code(
        "warning", "an embedding cut over the mesh axis that cuts the batch"
    ),
    "plan.imbalanced": Code("warning", "one device that holds more than the others"),
    "plan.optimizer_replicated": Code("info", "optimizer states in more copies than need be"),
    "plan.low_headroom": Code("info", "a plan that fits with little to spare"),
    # What people should know of their rules.
    "rule.invalid_spec": Code("error", "a spec that does not fit the tensor or the mesh"),
    "rule.unused": Code("warning", "a rule that finds no tensor"),
    "rule.shadowed": Code("warning", "a rule whose tensors earlier rules take"),
    "rule.conflict": Code("warning", "rules that want different things of the same tensor"),
    "rule.catch_all_replicates": Code("warning", "a catch-all that leaves something large whole"),
    "rule.unmatched": Code("warning", "tensors that no rule finds"),
}


def finding(
    code: str,
    what: str,
    fix: str,
    *,
    cause: str = "",
    shows: tuple[str, ...] = (),
    details: Mapping[str, Any] | None = None,
) -> Finding:
    """Return a finding of a known code, with the severity of its kind.

    >>> finding("plan.low_headroom", "5.0 GB of 96.0 GB are free.", "nothing.").severity
    'info'
    """
    return Finding(
        code=code,
        severity=CODES[code].severity,
        what=what,
        where=None,
        fix=fix,
        cause=cause,
        shows=shows,
        details=details or {},
    )
