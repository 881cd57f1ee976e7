"""Does the mesh divide every array axis that it cuts? JAX refuses those it does not.

Does one device hold more than the others?
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from shardlab._text.units import bytes_text
from shardlab.findings.finding import Finding
from shardlab.planner.findings.codes import finding
from shardlab.planner.findings.limits import Limits
from shardlab.planner.memory.batch_shards import Share, shares_of
from shardlab.planner.plan import DeviceBytes, Plan, PlanRow
from shardlab.planner.plan_request import PlanRequest
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.partition import nearest_divisible_sizes, shard_counts

_SHOWN = 4  # paths of one finding


@dataclass(frozen=True, kw_only=True)
class Cut:
    """An array axis of a line of the plan that its parts do not divide."""

    row: PlanRow
    held: DeviceBytes
    axis: int
    mesh_axes: tuple[str, ...]
    n_parts: int

    @property
    def size(self) -> int:
        return self.held.shape[self.axis]


def indivisible(plan: Plan, asked: PlanRequest) -> list[Finding]:
    """Return a finding for each size that does not divide, with all the tensors it is met in."""
    groups: dict[tuple[int, tuple[str, ...]], list[Cut]] = {}
    for cut in uneven_cuts(plan, asked.mesh):
        groups.setdefault((cut.size, cut.mesh_axes), []).append(cut)
    return [*(_found(cuts, asked.mesh) for cuts in groups.values()), *_workload(asked)]


def uneven_cuts(plan: Plan, mesh: Mesh) -> Iterator[Cut]:
    """Yield every array axis that does not divide; a state only where its parameter does."""
    for row in plan.rows:
        for held in row.held:
            found = list(_cuts(row, held, mesh))
            yield from found
            if found:
                break


def _cuts(row: PlanRow, held: DeviceBytes, mesh: Mesh) -> Iterator[Cut]:
    parts = shard_counts(held.spec, mesh)
    for axis, (size, n, names) in enumerate(zip(held.shape, parts, held.spec.axes, strict=False)):
        if size % n:
            yield Cut(row=row, held=held, axis=axis, mesh_axes=names, n_parts=n)


def _found(cuts: list[Cut], mesh: Mesh) -> Finding:
    first = cuts[0]
    others = "" if len(cuts) == 1 else f" (and of {len(cuts) - 1} more)"
    kind = "" if first.held.kind == "parameters" else f", of its {first.held.name},"
    over = " × ".join(f"'{name}'={mesh.shape[name]}" for name in first.mesh_axes)
    below, above = nearest_divisible_sizes(first.size, first.n_parts)
    sizes = f"{below:,} or {above:,}" if below else f"{above:,}"
    return finding(
        "plan.indivisible",
        f"Array axis {first.axis} of '{first.row.path}'{kind}{others} has size {first.size:,}, "
        f"which {first.n_parts} shards over {over} cannot split evenly: JAX refuses it.",
        f"size {sizes} on array axis {first.axis}{_other_ways(first, mesh)}, or leave it whole.",
        shows=tuple(
            f"{cut.row.path} {list(cut.held.shape)} {cut.held.spec}, by {cut.row.rule}"
            for cut in cuts[:_SHOWN]
        ),
        details={
            "paths": [cut.row.path for cut in cuts],
            "size": first.size,
            "parts": first.n_parts,
            "nearest": [below, above],
        },
    )


def _other_ways(cut: Cut, mesh: Mesh) -> str:
    """Name a mesh axis that would split it, and an array axis that these would."""
    spec = cut.held.spec
    free = [name for name in mesh.axis_names if name not in spec.mesh_axes or name in cut.mesh_axes]
    dividing = [name for name in free if mesh.shape[name] > 1 and not cut.size % mesh.shape[name]]
    ways = ", or over " + " or ".join(f"'{name}'={mesh.shape[name]}" for name in dividing)
    ways = ways if dividing else ""
    for other, size in enumerate(cut.held.shape):
        whole = other >= len(spec) or not spec.axes[other]
        if whole and size and not size % cut.n_parts:
            return f"{ways}, or cut array axis {other} ({size:,}) instead"
    return ways


def _workload(asked: PlanRequest) -> Iterator[Finding]:
    """The batch and the tokens are array axes too."""
    if (work := asked.workload) is None:
        return
    shares = shares_of(asked.mesh)
    name = "batch" if work.microbatch is None else "microbatch"
    yield from _split(f"{name} of {{:,}} sequences", work.microbatch or work.batch, shares.batch)
    yield from _split("sequence of {:,} tokens", work.sequence, shares.sequence)


def _split(name: str, size: int, share: Share) -> Iterator[Finding]:
    if size % share.parts:
        below, above = nearest_divisible_sizes(size, share.parts)
        yield finding(
            "plan.indivisible",
            f"The {name.format(size)} cannot be split evenly over {share}: JAX refuses it.",
            f"{below:,} or {above:,}." if below else f"{above:,}, or fewer devices on these axes.",
            details={"size": size, "parts": share.parts, "nearest": [below, above]},
        )


_WORTH = 0.01  # of what a device holds: what differs by less is not worth a word


def uneven(plan: Plan, asked: PlanRequest, limits: Limits) -> list[Finding]:
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
            "plan.imbalanced",
            f"The first device holds {bytes_text(most)}, the last {bytes_text(most - total)}: "
            f"shards are padded, and the memory of the fullest device counts.",
            "sizes that divide; see plan.indivisible.",
            shows=(f"{path}: {bytes_text(less[path])} less on the last device",),
            details={"first": most, "last": most - total},
        )
    ]


def _on_last(held: DeviceBytes, mesh: Mesh) -> int:
    """Return the bytes on the device that is last along every mesh axis."""
    cuts = shard_counts(held.spec, mesh)
    last = [
        max(0, size - (n - 1) * piece)
        for size, n, piece in zip(held.shape, cuts, held.shard_shape, strict=False)
    ]
    first = prod(held.shard_shape[: len(last)])
    return held.bytes_per_device * prod(last) // first if first else 0
