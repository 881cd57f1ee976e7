"""Does the mesh divide every array axis that it cuts? JAX refuses those it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardlab.layouts.cuts import cuts_of, nearest_fitting
from shardlab.layouts.mesh import Mesh
from shardlab.plans.asked import Asked
from shardlab.plans.codes import finding
from shardlab.plans.memory.shares import Share, shares_of
from shardlab.records.finding import Finding
from shardlab.records.plan import Held, Plan, PlanRow

_SHOWN = 4  # paths of one finding


@dataclass(frozen=True)
class Cut:
    """An array axis of a line of the plan that its parts do not divide."""

    row: PlanRow
    held: Held
    axis: int
    mesh_axes: tuple[str, ...]
    n_parts: int

    @property
    def size(self) -> int:
        return self.held.shape[self.axis]


def indivisible(plan: Plan, asked: Asked) -> list[Finding]:
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


def _cuts(row: PlanRow, held: Held, mesh: Mesh) -> Iterator[Cut]:
    parts = cuts_of(held.spec, mesh)
    for axis, (size, n, names) in enumerate(zip(held.shape, parts, held.spec.axes, strict=False)):
        if size % n:
            yield Cut(row, held, axis, names, n)


def _found(cuts: list[Cut], mesh: Mesh) -> Finding:
    first = cuts[0]
    others = "" if len(cuts) == 1 else f" (and of {len(cuts) - 1} more)"
    kind = "" if first.held.kind == "parameters" else f", of its {first.held.name},"
    over = " × ".join(f"'{name}'={mesh.shape[name]}" for name in first.mesh_axes)
    below, above = nearest_fitting(first.size, first.n_parts)
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


def _workload(asked: Asked) -> Iterator[Finding]:
    """The batch and the tokens are array axes too."""
    if (work := asked.workload) is None:
        return
    shares = shares_of(asked.mesh)
    name = "batch" if work.microbatch is None else "microbatch"
    yield from _split(f"{name} of {{:,}} sequences", work.microbatch or work.batch, shares.batch)
    yield from _split("sequence of {:,} tokens", work.sequence, shares.sequence)


def _split(name: str, size: int, share: Share) -> Iterator[Finding]:
    if size % share.parts:
        below, above = nearest_fitting(size, share.parts)
        yield finding(
            "plan.indivisible",
            f"The {name.format(size)} cannot be split evenly over {share}: JAX refuses it.",
            f"{below:,} or {above:,}." if below else f"{above:,}, or fewer devices on these axes.",
            details={"size": size, "parts": share.parts, "nearest": [below, above]},
        )
