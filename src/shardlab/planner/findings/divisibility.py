"""Is every sharded dimension divisible by its shard count, and do all devices store the same?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardlab._text.units import bytes_text
from shardlab.findings.finding import Finding
from shardlab.planner.findings.finding_limits import Limits
from shardlab.planner.findings.plan_finding_codes import make_finding
from shardlab.planner.memory.workload_shards import AxisShards, workload_shards
from shardlab.planner.plan import DeviceBytes, Plan, PlanRow
from shardlab.planner.plan_request import PlanRequest
from shardlab.planner.strategies.axis_roles import mesh_axis_roles
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.partition import nearest_divisible_sizes, shard_counts

_MAX_PATHS = 4  # listed in one finding


@dataclass(frozen=True, kw_only=True)
class IndivisibleDim:
    """A dimension of a row's array that is not divisible by its shard count."""

    row: PlanRow
    array: DeviceBytes
    dim: int
    mesh_axes: tuple[str, ...]
    n_shards: int

    @property
    def size(self) -> int:
        return self.array.shape[self.dim]


def find_indivisible(plan: Plan, request: PlanRequest) -> list[Finding]:
    """Return a finding for each size that is not divisible, with all the tensors that have it."""
    groups: dict[tuple[int, tuple[str, ...]], list[IndivisibleDim]] = {}
    for dim in indivisible_dims(plan, request):
        groups.setdefault((dim.size, dim.mesh_axes), []).append(dim)
    findings = [_indivisible_finding(dims, request.mesh) for dims in groups.values()]
    return [*findings, *_workload_findings(request)]


def indivisible_dims(plan: Plan, request: PlanRequest) -> Iterator[IndivisibleDim]:
    """Yield every indivisible dimension; of a row only those of its first array that has one.

    Gradients and optimizer states repeat the dimensions of their parameter. The stages of the
    strategy `pipeline` may have different numbers of layers; rules are for arrays, where JAX
    rejects that.
    """
    stage_axes = mesh_axis_roles(request.mesh).get("stage", ())
    uneven_axes = stage_axes if request.strategy is not None else ()
    for row in plan.rows:
        for array in row.arrays:
            dims = [
                dim
                for dim in _indivisible_dims_of(row, array, request.mesh)
                if not (dim.mesh_axes and set(dim.mesh_axes) <= set(uneven_axes))
            ]
            yield from dims
            if dims:
                break


def _indivisible_dims_of(row: PlanRow, array: DeviceBytes, mesh: Mesh) -> Iterator[IndivisibleDim]:
    counts = shard_counts(array.spec, mesh)
    dims = zip(array.shape, counts, array.spec.axes, strict=False)
    for dim, (size, n_shards, names) in enumerate(dims):
        if size % n_shards:
            yield IndivisibleDim(row=row, array=array, dim=dim, mesh_axes=names, n_shards=n_shards)


def _indivisible_finding(dims: list[IndivisibleDim], mesh: Mesh) -> Finding:
    first = dims[0]
    others = "" if len(dims) == 1 else f" (and of {len(dims) - 1} more)"
    kind = "" if first.array.kind == "parameters" else f", of its {first.array.name},"
    axes = " × ".join(f"'{name}'={mesh.shape[name]}" for name in first.mesh_axes)
    below, above = nearest_divisible_sizes(first.size, first.n_shards)
    sizes = f"{below:,} or {above:,}" if below else f"{above:,}"
    return make_finding(
        "plan.indivisible",
        f"Dimension {first.dim} of '{first.row.path}'{kind}{others} has size {first.size:,}, "
        f"which is not divisible by {first.n_shards} (mesh axis {axes}): JAX rejects it.",
        f"size {sizes} for dimension {first.dim}{_alternatives(first, mesh)}, or replicate it.",
        shows=tuple(
            f"{dim.row.path} {list(dim.array.shape)} {dim.array.spec}, by {dim.row.rule}"
            for dim in dims[:_MAX_PATHS]
        ),
        details={
            "paths": [dim.row.path for dim in dims],
            "size": first.size,
            "parts": first.n_shards,
            "nearest": [below, above],
        },
    )


def _alternatives(indivisible: IndivisibleDim, mesh: Mesh) -> str:
    """Name a mesh axis that divides the dimension, and a dimension that its axes divide."""
    spec = indivisible.array.spec
    # An axis that the spec already uses for another dimension cannot be used twice.
    free = [
        name
        for name in mesh.axis_names
        if name not in spec.mesh_axes or name in indivisible.mesh_axes
    ]
    dividing = [
        name for name in free if mesh.shape[name] > 1 and not indivisible.size % mesh.shape[name]
    ]
    axes = " or ".join(f"'{name}'={mesh.shape[name]}" for name in dividing)
    text = f", or shard it over {axes}" if dividing else ""
    for dim, size in enumerate(indivisible.array.shape):
        is_unsharded = dim >= len(spec) or not spec.axes[dim]
        if is_unsharded and size and not size % indivisible.n_shards:
            return f"{text}, or shard dimension {dim} ({size:,}) instead"
    return text


def _workload_findings(request: PlanRequest) -> Iterator[Finding]:
    """Yield findings about batch and sequence, which are sharded dimensions too."""
    if (work := request.workload) is None:
        return
    shards = workload_shards(request.mesh)
    name = "batch" if work.microbatch is None else "microbatch"
    yield from _check_divisible(name, work.microbatch or work.batch, "sequences", shards.batch)
    yield from _check_divisible("sequence", work.sequence, "tokens", shards.sequence)


def _check_divisible(name: str, size: int, unit: str, shards: AxisShards) -> Iterator[Finding]:
    if size % shards.n_shards:
        below, above = nearest_divisible_sizes(size, shards.n_shards)
        yield make_finding(
            "plan.indivisible",
            f"The {name} of {size:,} {unit} is not divisible by {shards.n_shards:,} ({shards}): "
            "JAX rejects it.",
            f"{name} {below:,} or {above:,}."
            if below
            else f"{name} {above:,}, or fewer devices on these axes.",
            details={
                "subject": name,
                "size": size,
                "parts": shards.n_shards,
                "nearest": [below, above],
            },
        )


def find_imbalance(plan: Plan, request: PlanRequest, limits: Limits) -> list[Finding]:
    """Return a finding if padded shards leave the last devices with less than the first."""
    sizes = request.mesh.shape
    rows = {id(dim.row): dim.row for dim in indivisible_dims(plan, request)}
    missing_bytes = {
        row.path: sum(
            array.bytes_per_device - array.last_device_bytes(sizes) for array in row.arrays
        )
        for row in rows.values()
    }
    total, most = sum(missing_bytes.values()), plan.bytes_per_device
    # A finding if either the amount or the fraction is notable.
    is_small = total < limits.replicated_bytes and total < limits.imbalance * most
    if not missing_bytes or is_small:
        return []
    path = max(missing_bytes, key=lambda path: missing_bytes[path])
    return [
        make_finding(
            "plan.imbalanced",
            f"The first device stores {bytes_text(most)}, the last {bytes_text(most - total)}: "
            f"shards are padded, and the fullest device decides whether it fits.",
            "divisible sizes; see plan.indivisible.",
            shows=(f"{path}: {bytes_text(missing_bytes[path])} less on the last device",),
            details={"first": most, "last": most - total},
        )
    ]
