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
from shardlab.plans.shares import shares_of
from shardlab.records.finding import Finding
from shardlab.records.plan import Held, Plan

_WORTH = 0.01  # of what a device holds: what differs by less is not worth a word


def uneven(plan: Plan, asked: Asked, limits: Limits) -> list[Finding]:
    """Return a finding where padded shards leave the last devices less, or stages are unlike."""
    found = _padded(plan, asked.mesh, limits)
    arch, stage = asked.model.architecture, shares_of(asked.mesh).stage
    if arch is not None and arch.layers % stage.parts:
        more, near = arch.layers % stage.parts, _dividing(arch.layers, stage.parts)
        found.append(
            finding(
                "plan.uneven",
                f"{arch.layers} layers on {stage}: {more} stage{'s' * (more > 1)} with "
                f"{stage.of(arch.layers)} layers, the others with {arch.layers // stage.parts}.",
                f"a number of stages that divides {arch.layers}: {near}.",
                details={"layers": arch.layers, "stages": stage.parts},
            )
        )
    return found


def _dividing(layers: int, near: int) -> str:
    numbers = [n for n in range(1, layers + 1) if layers % n == 0]
    below = max(n for n in numbers if n < near) if near > 1 else 1
    above = next((n for n in numbers if n > near), None)
    return f"{below} or {above}" if above else f"{below}"


def _padded(plan: Plan, mesh: Mesh, limits: Limits) -> list[Finding]:
    """Compare the first device along every axis with the last."""
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
