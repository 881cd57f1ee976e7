"""A plan as text: totals against the chip, then the tensors, largest first."""

from __future__ import annotations

from shardlab.records.plan import KINDS, Plan


def plan_text(plan: Plan) -> str:
    """Return the plan as plain text."""
    mesh = ",".join(f"{name}={size}" for name, size in plan.mesh)
    lines = [f"{plan.model} on mesh {mesh}"]
    lines += [f"  {kind:12} {plan.bytes_of(kind) / 1e9:10.3f} GB" for kind in KINDS]
    for row in sorted(plan.rows, key=lambda row: -row.bytes_per_device):
        held = row.parameter
        lines.append(f"  {row.path} ×{row.n_tensors} {held.spec} {row.bytes_per_device}")
    return "\n".join(lines)
