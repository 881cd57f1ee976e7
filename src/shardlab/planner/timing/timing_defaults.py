"""What a timed plan assumes where nothing is said: the defaults of the software that is assumed.

>>> from shardlab.planner.timing.estimate_step import step_estimator
>>> estimator, work = step_estimator("llama3-70b", "data=2,stage=8,tensor=4", hardware="h100",
...                                  strategy="tensor+zero1")
>>> workload = with_timing_defaults(Workload(batch=128, sequence=8192), estimator, work)
>>> workload.remat, workload.microbatch, str(workload.schedule)
('selective', 2, 'interleaved')

A pipeline without microbatches would wait most of the time, so each stage computes one sequence at
once, as with Megatron's `--micro-batch-size 1`. Remat is that of the framework: MaxText's default
`remat_policy: full`, and selective activation checkpointing in torchtitan and Megatron. What does
not fit into the memory of a device cannot have run: then the batch is divided into microbatches,
and if that is not enough layers are recomputed in full, as for long sequences:

>>> estimator, work = step_estimator("llama3-8b", "fsdp=2,context=4", hardware="h100")
>>> with_timing_defaults(Workload(batch=2, sequence=131072), estimator, work).remat
'full'
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from shardlab.hardware.chips import Hardware, parse_hardware
from shardlab.hardware.frameworks import Framework, default_framework, parse_framework
from shardlab.planner.memory.activations import count_token_memory
from shardlab.planner.memory.step_memory import find_peak, memory_profile, with_selective_saves
from shardlab.planner.memory.workload import Workload
from shardlab.planner.memory.workload_shards import workload_shards
from shardlab.planner.model import Architecture, Model
from shardlab.planner.strategies.axis_roles import batch_axes, mesh_axis_roles
from shardlab.planner.strategies.pipeline_schedule import parse_schedule
from shardlab.sharding.factors import divisors
from shardlab.sharding.mesh import Mesh

# Peaks of GPUs are estimated up to 1.29 times too high (docs/planner-accuracy.md).
_PEAK_ERROR = 1.25

if TYPE_CHECKING:
    from shardlab.planner.timing.step_estimator import ShardedWork, StepEstimator


def assumed_framework(
    name: str | Framework | None, hardware: str | Path | Hardware, mesh: Mesh, model: Model
) -> Framework:
    """Return the framework of a name, or the one that is assumed without one."""
    parsed = parse_framework(name)
    return parsed or mesh_framework(parse_hardware(hardware), mesh, model.architecture)


def mesh_framework(
    hardware: Hardware, mesh: Mesh, architecture: Architecture | None = None
) -> Framework:
    """Return the framework that is assumed on a mesh, by the roles of its axes and the model."""
    roles = mesh_axis_roles(mesh)
    used = [role for role, names in roles.items() if any(mesh.shape[name] > 1 for name in names)]
    return default_framework(hardware, used, is_gpt=_is_gpt(architecture))


def _is_gpt(arch: Architecture | None) -> bool:
    return arch is not None and not arch.gated and not arch.experts and arch.kv_heads == arch.heads


def shards_whole_experts(hardware: Hardware, mesh: Mesh, arch: Architecture | None) -> bool:
    """Return whether experts are assumed to be sharded over tensor axes too, each as a whole.

    NVIDIA's recipes and torchtitan have an expert tensor size of 1; on TPUs, MaxText shards each
    expert over tensor axes.
    """
    shards = {
        role: prod(mesh.shape[name] for name in mesh_axis_roles(mesh).get(role, ()))
        for role in ("expert", "tensor")
    }
    if arch is None or not arch.experts or hardware.network != "switch":
        return False
    return min(shards.values()) > 1 and arch.experts % prod(shards.values()) == 0


def with_timing_defaults(
    workload: Workload,
    estimator: StepEstimator,
    work: ShardedWork,
    *,
    is_remat_given: bool = False,
    is_schedule_given: bool = False,
    usable_bytes: int | None = None,
) -> Workload:
    """Return the workload with remat policy, microbatch and schedule, where they are not given.

    With `usable_bytes` of a device's memory, a plan's, the first default whose estimate fits there
    is preferred to one that may fit only because the estimate errs.
    """
    framework, mesh = estimator.framework_for(work.mesh), work.mesh
    if not is_schedule_given:
        workload = replace(workload, schedule=parse_schedule(framework.schedule))
    workload = with_attention_defaults(workload, framework)
    stages = mesh_axis_roles(mesh).get("stage", ())
    n_shards = prod(mesh.shape[name] for name in batch_axes(mesh))
    is_pipeline = any(mesh.shape[name] > 1 for name in stages)
    if is_pipeline and workload.microbatch is None and workload.batch % n_shards == 0:
        workload = replace(workload, microbatch=n_shards)
    if not is_remat_given:
        workload = replace(workload, remat=framework.remat)
    if estimator.timer.hardware.network == "torus":
        return workload
    policies = (workload.remat,) if is_remat_given else (workload.remat, "full")
    variants = list(_divide_batch(workload, policies, n_shards))
    if usable_bytes is not None:
        for variant in variants:
            if _fits(variant, estimator, work, usable_bytes):
                return variant
    if _has_experts(estimator) or "hbm_bytes" not in estimator.timer.hardware.figures:
        return workload
    limit = _PEAK_ERROR * estimator.timer.hardware.figure("hbm_bytes").value
    fitting = (variant for variant in variants if _fits(variant, estimator, work, limit))
    return next(fitting, variants[0])


def _has_experts(estimator: StepEstimator) -> bool:
    arch = estimator.model.architecture
    return arch is not None and arch.experts > 0


def with_attention_defaults(workload: Workload, framework: Framework) -> Workload:
    """Return the workload with the attention of a framework: without a flash kernel if it has none.

    >>> from shardlab.hardware.frameworks import frameworks
    >>> with_attention_defaults(Workload(batch=1, sequence=8), frameworks()["megatron-2022"]).flash
    False
    """
    if framework.flash and not framework.dropout:
        return workload
    return replace(
        workload,
        flash=workload.flash and framework.flash,
        dropout=workload.dropout or framework.dropout,
    )


def _divide_batch(workload: Workload, policies: Sequence[str], n_shards: int) -> Iterator[Workload]:
    """Yield the workload with each remat policy, in ever more microbatches."""
    for remat in dict.fromkeys(policies):
        variant = replace(workload, remat=remat)
        yield variant
        if variant.microbatch is None and variant.batch % n_shards == 0:
            for count in divisors(variant.batch // n_shards)[1:]:
                yield replace(variant, microbatch=variant.batch // count)


def _fits(workload: Workload, estimator: StepEstimator, work: ShardedWork, n_bytes: float) -> bool:
    """Return whether the memory of a step is estimated to be at most so many bytes."""
    arch = estimator.model.architecture
    if work.stored is None or arch is None:
        return True
    profile = memory_profile(estimator.framework_for(work.mesh).name)
    workload, shards = with_selective_saves(workload, profile), workload_shards(work.mesh)
    tokens = count_token_memory(arch, shards, workload)
    peak = find_peak(tokens, work.stored, workload, shards, profile)
    stored = work.stored.parameters + work.stored.gradients
    return stored + peak.activations + peak.optimizer <= n_bytes
