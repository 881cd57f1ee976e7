"""`estimate_step()`: the time of one step of a model on a mesh that the user chose.

>>> from shardlab.planner.memory.workload import Workload
>>> step = estimate_step("llama3-8b", "fsdp=8", hardware="h100", strategy="fsdp",
...                      workload=Workload(batch=16, sequence=8192, remat="none"))
>>> step.unit, 1 < step.expected < 3
('step', True)
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from shardlab.errors import InvalidModel
from shardlab.hardware.chips import Hardware, parse_hardware
from shardlab.hardware.frameworks import Framework, parse_framework
from shardlab.hardware.operation_time import OperationTimer
from shardlab.hardware.step_time import StepTime
from shardlab.hardware.step_timer import StepTimer
from shardlab.planner.memory.dtype_policy import DtypePolicy, parse_dtype_policy
from shardlab.planner.memory.fp8_scales import without_scales
from shardlab.planner.memory.optimizer import Optimizer, parse_optimizer
from shardlab.planner.memory.workload import Workload
from shardlab.planner.model import Architecture, Model, check_model
from shardlab.planner.models.load import load_model
from shardlab.planner.models.optimizer_state import drop_optimizer_states
from shardlab.planner.models.transformer import stage_groups
from shardlab.planner.strategies.axis_roles import mesh_axis_roles
from shardlab.planner.strategies.pipeline_schedule import PipelineSchedule, parse_schedule
from shardlab.planner.strategies.strategy import Strategy, parse_strategy, shard_model
from shardlab.planner.timing.step_estimator import ShardedWork, StepEstimator, parse_precision
from shardlab.planner.timing.weight_bytes import WeightCounter
from shardlab.planner.timing.weight_matmuls import weight_matmuls
from shardlab.sharding.mesh import Mesh, parse_mesh


def estimate_step(
    model: Any,
    mesh: Any,
    *,
    hardware: str | Path | Hardware,
    workload: Workload,
    cache_bytes: int = 0,
    **options: Any,
) -> StepTime:
    """Return the time of a training step, or of one token if the optimizer is "none".

    The options are those of `step_estimator`.
    """
    estimator, work = step_estimator(model, mesh, hardware=hardware, **options)
    arch = known_architecture(estimator.model)
    return estimator.estimate(arch, work, workload, cache_bytes=cache_bytes)[0]


def estimate_prefill(
    model: Any,
    mesh: Any,
    *,
    hardware: str | Path | Hardware,
    workload: Workload,
    **options: Any,
) -> StepTime:
    """Return the time to read the prompts of a batch, of `workload.sequence` tokens each.

    >>> from shardlab.planner.memory.workload import Workload
    >>> prefill = estimate_prefill(
    ...     "llama3-8b", "data=1,tensor=2", hardware="h100", optimizer="none", strategy="tensor",
    ...     workload=Workload(batch=1, sequence=2048))
    >>> 0.02 < prefill.expected < 0.2
    True
    """
    estimator, work = step_estimator(model, mesh, hardware=hardware, **options)
    return estimator.estimate_prefill(known_architecture(estimator.model), work, workload)


def step_estimator(
    model: Any,
    mesh: Any,
    *,
    hardware: str | Path | Hardware,
    strategy: str | Strategy = "fsdp",
    optimizer: str | Optimizer = "adamw",
    policy: Any = None,
    schedule: PipelineSchedule | str = "1f1b",
    precision: str = "bf16",
    framework: str | Framework | None = None,
) -> tuple[StepEstimator, ShardedWork]:
    """Return an estimator for a model, and what one device of the mesh computes.

    `precision` is that of the products with weights: bf16, fp8 or int8.
    """
    chip = parse_hardware(hardware)
    parsed_optimizer, dtype_policy = parse_optimizer(optimizer), parse_dtype_policy(policy)
    loaded = drop_optimizer_states(without_scales(check_model(load_model(model)), dtype_policy))
    arch = known_architecture(loaded)
    estimator = StepEstimator(
        model=loaded,
        is_training=parsed_optimizer.is_training,
        timer=StepTimer(hardware=chip),
        operation_timer=OperationTimer(hardware=chip),
        schedule=parse_schedule(schedule),
        framework=parse_framework(framework),
        dtype=parse_precision(precision),
    )
    parsed_mesh = parse_mesh(mesh)
    parsed_strategy = replace(
        parse_strategy(strategy), flat_states=estimator.framework_for(parsed_mesh).flat_states
    )
    work = shard_work(loaded, arch, parsed_mesh, parsed_strategy, parsed_optimizer, dtype_policy)
    return estimator, work


def known_architecture(model: Model) -> Architecture:
    """Return the architecture of a model; without one its step cannot be timed."""
    if model.architecture is None:
        raise InvalidModel(
            f"The architecture of {model.name!r:.80} is unknown, so its step cannot be timed.",
            fix="pass an architecture: layers, hidden, heads, kv_heads, head_dim, ffn, vocab.",
        )
    return model.architecture


def shard_work(
    model: Model,
    arch: Architecture,
    mesh: Mesh,
    strategy: Strategy,
    optimizer: Optimizer,
    policy: DtypePolicy,
) -> ShardedWork:
    """Return what one device of the fullest pipeline stage computes and synchronizes."""
    stage_axes = mesh_axis_roles(mesh).get("stage", ())
    inside = Mesh(tuple(axis for axis in mesh.shape.items() if axis[0] not in stage_axes))
    n_stages = mesh.n_devices // inside.n_devices
    n_in_stage = -(-arch.layers // n_stages)
    # A stage is a model with fewer layers: stages of different depth need no padding.
    stage = replace(model, groups=stage_groups(model.groups, arch.layers, n_in_stage))
    inside_strategy = replace(
        strategy, parts=tuple(part for part in strategy.parts if part != "pipeline")
    )
    sharded = tuple(shard_model(stage, inside_strategy, inside))
    counter = WeightCounter(optimizer=optimizer, policy=policy)
    weights = counter.count_bytes(sharded, inside, strategy.zero_stage)
    return ShardedWork(
        mesh=mesh,
        products=weight_matmuls(sharded, arch, inside, policy),
        weights=weights,
        stored=counter.step_weights(sharded, inside, weights),
    )
