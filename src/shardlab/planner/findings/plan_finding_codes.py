"""Every finding about plans and rules: its code, severity and title. Each has a page."""

from __future__ import annotations

from typing import Any

from shardlab.findings import codes
from shardlab.findings.codes import FindingCode
from shardlab.findings.finding import Finding

PLAN_FINDING_CODES = {
    "plan.does_not_fit": FindingCode("error", "a device needs more memory than its chip has"),
    "plan.indivisible": FindingCode("error", "a dimension is not divisible by its shard count"),
    "plan.replicated": FindingCode("warning", "large tensors are replicated on every device"),
    "plan.unsharded": FindingCode("warning", "a strategy could not shard some tensors"),
    "plan.unused_mesh_axis": FindingCode("warning", "a mesh axis shards nothing"),
    "plan.kv_heads_replicated": FindingCode(
        "warning", "the number of kv heads is not divisible by the tensor axis"
    ),
    "plan.embedding_sharding": FindingCode(
        "warning", "an embedding is sharded over a mesh axis that also shards the batch"
    ),
    "plan.imbalanced": FindingCode("warning", "some devices store more than others"),
    "plan.optimizer_replicated": FindingCode("info", "optimizer states are replicated"),
    "plan.low_headroom": FindingCode("info", "a plan fits with little headroom"),
    # Lint of rules; `rules/lint.py` reports them.
    "rule.invalid_spec": FindingCode("error", "a spec does not match the tensor or the mesh"),
    "rule.unused": FindingCode("warning", "a rule matches no tensor"),
    "rule.shadowed": FindingCode("warning", "earlier rules match all tensors of a rule"),
    "rule.conflict": FindingCode("warning", "rules give different specs to the same tensor"),
    "rule.catch_all_replicates": FindingCode(
        "warning", "a catch-all rule replicates a large tensor"
    ),
    "rule.unmatched": FindingCode("warning", "tensors match no rule"),
}


def make_finding(code: str, message: str, fix: str, **parts: Any) -> Finding:
    """Return a finding with the severity of its code; `parts` are cause, shows and details.

    >>> make_finding("plan.low_headroom", "5.0 GB of 96.0 GB are free.", "nothing.").severity
    'info'
    """
    return codes.make_finding(PLAN_FINDING_CODES, code, message, None, fix, **parts)
