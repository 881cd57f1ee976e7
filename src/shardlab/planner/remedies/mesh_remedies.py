"""Remedies that change the mesh: each proposal is a text and the request to plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from shardlab.planner.memory.workload import Workload
from shardlab.planner.memory.workload_shards import workload_shards
from shardlab.planner.plan import Plan
from shardlab.planner.plan_request import PlanRequest
from shardlab.planner.remedies.alternative_meshes import AlternativeMeshes
from shardlab.planner.strategies.axis_roles import batch_axes, mesh_axis_roles
from shardlab.planner.strategies.strategy import Strategy, make_strategy
from shardlab.sharding.mesh import Mesh, mesh_text

Proposals = Iterator[tuple[str, PlanRequest]]
_MAX_MESHES = 12  # of one kind: each is a plan of its own
_MAX_TENSOR_MESHES = 5
_POWERS_OF_TWO = tuple(1 << power for power in range(1, 11))


def propose_other_splits(request: PlanRequest, plan: Plan) -> Proposals:
    """The same devices with other sizes of the mesh axes."""
    if _may_fit(plan, request, request.mesh):
        meshes = AlternativeMeshes(request.model, request.mesh).same_device_count()
        for mesh in islice(meshes, _MAX_MESHES):
            text = f"{_mesh_label(mesh)}, on the same {mesh.n_devices:,} devices"
            yield text, replace(request, mesh=mesh)


def propose_fewer_devices(request: PlanRequest, plan: Plan) -> Proposals:
    """Fewer devices, if the mesh does not divide the model and a smaller one does."""
    meshes = AlternativeMeshes(request.model, request.mesh).fewer_devices()
    for mesh in islice((mesh for mesh in meshes if _may_fit(plan, request, mesh)), _MAX_MESHES):
        yield f"{_mesh_label(mesh)}, {_device_change(mesh, request)}", replace(request, mesh=mesh)


def propose_more_devices(request: PlanRequest, plan: Plan) -> Proposals:
    """The fewest devices first, with a strategy that shards over them."""
    meshes = AlternativeMeshes(request.model, request.mesh).more_devices()
    for mesh in islice((mesh for mesh in meshes if _may_fit(plan, request, mesh)), _MAX_MESHES):
        text = f"{_mesh_label(mesh)}, {_device_change(mesh, request)}"
        # More batch shards need a batch that they divide.
        work = request.workload and divisible_workload(mesh, request.workload)
        if work and request.workload and work.batch != request.workload.batch:
            text += f", with batch {work.batch:,}"
        grown_axes = {name for name, size in mesh.shape.items() if size != request.mesh.shape[name]}
        strategy = _strategy_for_growth(grown_axes, request)
        if strategy is None:
            yield text, replace(request, mesh=mesh, workload=work)
        else:
            larger = replace(request, mesh=mesh, workload=work, strategy=strategy)
            yield f"{text}, and strategy {strategy.name}", larger


def _strategy_for_growth(grown_axes: set[str], request: PlanRequest) -> Strategy | None:
    """Return ZeRO 3 if only batch axes grow, over which the present strategy replicates."""
    strategy = request.strategy
    if strategy is None or not request.is_training or "fsdp" in strategy.parts:
        return None
    if not grown_axes <= set(batch_axes(request.mesh)):
        return None
    return make_strategy(strategy.parts, 3)


def propose_tensor_axis_for_serving(request: PlanRequest, plan: Plan) -> Proposals:
    """Serving: some of the devices that hold replicas become a tensor axis."""
    shape, strategy = request.mesh.shape, request.strategy
    if request.is_training or strategy is None or "tensor" in mesh_axis_roles(request.mesh):
        return
    for name in mesh_axis_roles(request.mesh).get("data", ()):
        for size in (size for size in _POWERS_OF_TWO if shape[name] % size == 0):
            mesh = Mesh({**shape, name: shape[name] // size, "tensor": size})
            if _may_fit(plan, request, mesh):
                devices = f"on the same {mesh.n_devices:,} devices"
                yield _add_part("tensor", strategy, mesh, request, devices)


def propose_new_axis(request: PlanRequest, plan: Plan) -> Proposals:
    """One more mesh axis, if there is none to grow: fsdp in training, tensor in serving."""
    roles, strategy = mesh_axis_roles(request.mesh), request.strategy
    part = "fsdp" if request.is_training else "tensor"
    if strategy is None or part in roles or (part == "fsdp" and "data" in roles):
        return
    yield from _add_axis(part, strategy, request, plan)


def propose_tensor_axis_for_training(request: PlanRequest, plan: Plan) -> Proposals:
    """A tensor axis, if one sequence is already too much for a device."""
    strategy = request.strategy
    if (
        request.is_training
        and strategy is not None
        and "tensor" not in mesh_axis_roles(request.mesh)
    ):
        yield from islice(_add_axis("tensor", strategy, request, plan), _MAX_TENSOR_MESHES)


def _add_axis(part: str, strategy: Strategy, request: PlanRequest, plan: Plan) -> Proposals:
    shape = request.mesh.shape
    for size in _POWERS_OF_TWO:
        # Tensor parallelism is innermost, where devices are nearest to each other.
        mesh = Mesh({part: size, **shape} if part == "fsdp" else {**shape, part: size})
        if _may_fit(plan, request, mesh):
            yield _add_part(part, strategy, mesh, request, _device_change(mesh, request))


def _add_part(
    part: str, strategy: Strategy, mesh: Mesh, request: PlanRequest, devices: str
) -> tuple[str, PlanRequest]:
    extended = make_strategy([*strategy.parts, part], strategy.zero_stage)
    work = request.workload and divisible_workload(mesh, request.workload)
    text = f"{_mesh_label(mesh)}, {devices}, and strategy {extended.name}"
    return text, replace(request, mesh=mesh, strategy=extended, workload=work)


def _may_fit(plan: Plan, request: PlanRequest, mesh: Mesh) -> bool:
    """Return whether all tensors, evenly sharded, take no more than all devices have."""
    # A cheap lower bound, before a full plan of the mesh.
    unreplicated = sum(array.array_bytes for row in plan.rows for array in row.arrays)
    budget = request.budget
    return budget is not None and unreplicated <= mesh.n_devices * budget.usable_bytes


def _mesh_label(mesh: Mesh) -> str:
    return f"mesh {mesh_text(mesh.shape.items())}"


def _device_change(mesh: Mesh, request: PlanRequest) -> str:
    return f"{mesh.n_devices:,} devices instead of {request.mesh.n_devices:,}"


def divisible_workload(mesh: Mesh, work: Workload) -> Workload:
    """Return the workload with batch and microbatch rounded up to multiples of the batch shards."""
    n_shards = workload_shards(mesh).batch.n_shards
    # The microbatch must be divisible by the shards, the batch by the microbatch.
    size = work.microbatch or work.batch
    size = -(-size // n_shards) * n_shards
    batch = -(-work.batch // size) * size
    return replace(work, batch=batch, microbatch=work.microbatch and size)
