"""Does one device hold more than the others?"""

from __future__ import annotations

from math import prod

from shardlab.layouts.amount import memory_text
from shardlab.layouts.cuts import cuts_of
from shardlab.layouts.mesh import Mesh
from shardlab.plans.asked import Asked
from shardlab.plans.codes import finding
from shardlab.plans.limits import Limits
from shardlab.plans.questions.indivisible import uneven_cuts
from shardlab.records.finding import Finding
from shardlab.records.plan import Held, Plan

_WORTH = 0.01  # of what a device holds: what differs by less is not worth a word


def uneven(plan: Plan, asked: Asked, limits: Limits) -> list[Finding]:
    """Return a finding where padded shards leave the last devices less than the first."""
    mesh = asked.mesh
    rows = {id(cut.row): cut.row for cut in uneven_cuts(plan, mesh)}
    less = {
        row.path: sum(held.bytes_per_device - _on_last(held, mesh) for held in row.held)
        for row in rows.values()
    }
    total, most = sum(less.values()), plan.bytes_per_device
    if not less or (total < limits.replicated_bytes and total < _WORTH * most):
        return []
    path = max(less, key=lambda each: less[each])
    return [
        finding(
            "plan.uneven",
            f"The first device holds {memory_text(most)}, the last {memory_text(most - total)}: "
            f"shards are padded, and the memory of the fullest device counts.",
            "sizes that divide; see plan.indivisible.",
            shows=(f"{path}: {memory_text(less[path])} less on the last device",),
            details={"first": most, "last": most - total},
        )
    ]


def _on_last(held: Held, mesh: Mesh) -> int:
    """Return the bytes on the device that is last along every mesh axis."""
    cuts = cuts_of(held.spec, mesh)
    last = [
        max(0, size - (n - 1) * piece)
        for size, n, piece in zip(held.shape, cuts, held.shard_shape, strict=False)
    ]
    first = prod(held.shard_shape[: len(last)])
    return held.bytes_per_device * prod(last) // first if first else 0
