"""Changes of the mesh that may make a plan fit: each in words, with the question it makes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from shardlab.planner.memory.batch_shards import shares_of
from shardlab.planner.memory.workload import Workload
from shardlab.planner.plan import Plan
from shardlab.planner.plan_request import PlanRequest
from shardlab.planner.remedies.alternative_meshes import OtherMeshes
from shardlab.planner.strategies.axis_roles import batch_axes, mesh_axis_roles
from shardlab.planner.strategies.strategy import parse_strategy, strategy_name
from shardlab.sharding.mesh import Mesh

Tried = Iterator[tuple[str, PlanRequest]]
_TRIES = 12  # meshes of one kind
_TENSOR_TRIES = 5
_POWERS = tuple(1 << k for k in range(1, 11))


def splits(asked: PlanRequest, plan: Plan) -> Tried:
    """The same devices with other sizes of the mesh axes."""
    if _may_fit(plan, asked, asked.mesh):
        for mesh in islice(OtherMeshes(asked.model, asked.mesh).splits(), _TRIES):
            told = f"mesh {mesh_text(mesh)}, on the same {mesh.n_devices:,} devices"
            yield told, replace(asked, mesh=mesh)


def fewer(asked: PlanRequest, plan: Plan) -> Tried:
    """Fewer devices, where the sizes of the mesh do not divide the model and others do."""
    meshes = OtherMeshes(asked.model, asked.mesh).fewer()
    for mesh in islice((mesh for mesh in meshes if _may_fit(plan, asked, mesh)), _TRIES):
        yield f"mesh {mesh_text(mesh)}, {_in_place(mesh, asked)}", replace(asked, mesh=mesh)


def more(asked: PlanRequest, plan: Plan) -> Tried:
    """The fewest devices first, with a strategy that cuts over them."""
    meshes = OtherMeshes(asked.model, asked.mesh).more()
    for mesh in islice((mesh for mesh in meshes if _may_fit(plan, asked, mesh)), _TRIES):
        told = f"mesh {mesh_text(mesh)}, {_in_place(mesh, asked)}"
        work = asked.workload and work_on(mesh, asked.workload)
        if work and asked.workload and work.batch != asked.workload.batch:
            told += f", with a batch of {work.batch:,}"
        grown = {name for name, size in mesh.shape.items() if size != asked.mesh.shape[name]}
        name = _cutting_over(grown, asked)
        if name is None:
            yield told, replace(asked, mesh=mesh, workload=work)
        else:
            other = replace(asked, mesh=mesh, workload=work, strategy=name)
            yield f"{told}, and strategy {name}", other


def _cutting_over(grown: set[str], asked: PlanRequest) -> str | None:
    """Return the strategy that cuts parameters over batch axes too, where the present does not."""
    if asked.strategy is None or not asked.is_training:
        return None
    strategy = parse_strategy(asked.strategy)
    if "fsdp" in strategy.parts or not grown <= set(batch_axes(asked.mesh)):
        return None
    return strategy_name(strategy.parts, 3)


def tensor_in_serving(asked: PlanRequest, plan: Plan) -> Tried:
    """Serving: a part of the devices that hold copies as a tensor axis."""
    shape = asked.mesh.shape
    if asked.is_training or asked.strategy is None or "tensor" in mesh_axis_roles(asked.mesh):
        return
    for name in mesh_axis_roles(asked.mesh).get("data", ()):
        for n in (n for n in _POWERS if shape[name] % n == 0):
            mesh = Mesh({**shape, name: shape[name] // n, "tensor": n})
            if _may_fit(plan, asked, mesh):
                yield _with_part("tensor", mesh, asked, f"on the same {mesh.n_devices:,} devices")


def new_axis(asked: PlanRequest, plan: Plan) -> Tried:
    """A mesh axis more: fsdp in training, tensor in serving, where there is none to grow."""
    roles = mesh_axis_roles(asked.mesh)
    part = "fsdp" if asked.is_training else "tensor"
    if asked.strategy is None or part in roles or (part == "fsdp" and "data" in roles):
        return
    yield from _with_axis(part, asked, plan)


def tensor_in_training(asked: PlanRequest, plan: Plan) -> Tried:
    """A tensor axis, where what one sequence takes on a device is too much already."""
    if (
        asked.is_training
        and asked.strategy is not None
        and "tensor" not in mesh_axis_roles(asked.mesh)
    ):
        yield from islice(_with_axis("tensor", asked, plan), _TENSOR_TRIES)


def _with_axis(part: str, asked: PlanRequest, plan: Plan) -> Tried:
    shape = asked.mesh.shape
    for n in _POWERS:
        mesh = Mesh({part: n, **shape} if part == "fsdp" else {**shape, part: n})
        if _may_fit(plan, asked, mesh):
            yield _with_part(part, mesh, asked, _in_place(mesh, asked))


def _with_part(part: str, mesh: Mesh, asked: PlanRequest, devices: str) -> tuple[str, PlanRequest]:
    strategy = parse_strategy(asked.strategy)
    name = strategy_name([*strategy.parts, part], strategy.zero_stage)
    work = asked.workload and work_on(mesh, asked.workload)
    told = f"mesh {mesh_text(mesh)}, {devices}, and strategy {name}"
    return told, replace(asked, mesh=mesh, strategy=name, workload=work)


def _may_fit(plan: Plan, asked: PlanRequest, mesh: Mesh) -> bool:
    """Tell whether one copy of all tensors, in even parts, is no more than the devices have."""
    once = sum(held.array_bytes for row in plan.rows for held in row.held)
    return asked.room is not None and once <= mesh.n_devices * asked.room.usable_bytes


def mesh_text(mesh: Mesh) -> str:
    return ",".join(f"{name}={size}" for name, size in mesh.shape.items())


def _in_place(mesh: Mesh, asked: PlanRequest) -> str:
    return f"{mesh.n_devices:,} devices in place of {asked.mesh.n_devices:,}"


def work_on(mesh: Mesh, work: Workload) -> Workload:
    """Return the workload with a batch, and a microbatch, for every part of the mesh."""
    parts = shares_of(mesh).batch.parts
    size = work.microbatch or work.batch
    size = -(-size // parts) * parts
    batch = -(-work.batch // size) * size
    return replace(work, batch=batch, microbatch=work.microbatch and size)
