"""Estimates the time of one step on a mesh: operations, collectives and the pipeline's bubble.

A search estimates hundreds of thousands of candidates, which differ in few respects, so the times
of operations are cached by what they depend on: the tokens of a device, its shards, and remat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardlab.errors import UnknownOption, short_repr
from shardlab.hardware.frameworks import SERVING, Framework
from shardlab.hardware.operation_time import OperationTime, OperationTimer
from shardlab.hardware.step_time import StepTime
from shardlab.hardware.step_timer import CollectiveTimes, StepTimer
from shardlab.hardware.switched import spans_of
from shardlab.planner.memory.step_memory import StepWeights
from shardlab.planner.memory.workload import Workload
from shardlab.planner.memory.workload_shards import WorkloadShards, workload_shards
from shardlab.planner.model import Architecture, Model
from shardlab.planner.strategies.axis_roles import mesh_axis_roles
from shardlab.planner.strategies.pipeline_schedule import (
    ONE_F_ONE_B,
    PipelineSchedule,
    bubble_fraction,
)
from shardlab.planner.timing.decoding_operations import decoding_operations
from shardlab.planner.timing.prefill_operations import prefill_operations
from shardlab.planner.timing.recomputation import recomputation
from shardlab.planner.timing.step_communication import (
    decoding_collectives,
    prefill_collectives,
    training_collectives,
)
from shardlab.planner.timing.step_flops import decoding_flops, training_flops
from shardlab.planner.timing.step_operations import repeats_forward, training_operations
from shardlab.planner.timing.timing_defaults import mesh_framework
from shardlab.planner.timing.weight_bytes import WeightBytes, WeightSync
from shardlab.planner.timing.weight_matmuls import WeightMatmul
from shardlab.sharding.mesh import Mesh, MeshSizes

Weights = Mapping[WeightSync, WeightBytes]
# Arrays that the optimizer reads and writes; gradients are only read.
# Megatron and torchtitan number ranks by role, however a mesh is written: tensor groups are in a
# node if they fit there (megatron/core/parallel_state.py, order "tp-cp-ep-dp-pp").
_RANK_ORDER = ("", "stage", "data", "fsdp", "expert", "sequence", "tensor")
_UPDATED_KINDS = ("parameters", "optimizer")
# The relative error of mixtures of experts on chips without a published run of one: the largest of
# the others.
_EXPERT_ERROR = 0.8


# precision -> the dtype whose peak FLOP/s counts
PRECISIONS = {"bf16": "bf16", "fp8": "float8_e4m3fn", "int8": "int8"}


def parse_precision(precision: Any) -> str:
    """Return the dtype of products with weights: bf16, fp8 or int8."""
    if precision in PRECISIONS:
        return PRECISIONS[precision]
    raise UnknownOption(
        f"Unknown precision {short_repr(precision)}.",
        where=f"one of {', '.join(PRECISIONS)}",
        fix="'bf16', or 'fp8' if products with weights have 8-bit operands.",
    )


@dataclass(frozen=True)
class _TimedOperations:
    """The operations of a step with their times, in the three lists of `StepOperations`."""

    layers: tuple[OperationTime, ...]
    head: tuple[OperationTime, ...]
    update: tuple[OperationTime, ...]


@dataclass(frozen=True, kw_only=True)
class ShardedWork:
    """What one device of a mesh computes and synchronizes, before batch and remat are chosen."""

    mesh: Mesh
    products: tuple[WeightMatmul, ...]
    weights: Weights
    stored: StepWeights | None = None  # the sums of `weights`, with what a step gathers

    @property
    def has_wide_experts(self) -> bool:
        """Whether tensor axes shard the experts of a layer, and not each of them."""
        return any(product.n_token_shards > 1 for product in self.products)


@dataclass(kw_only=True)
class StepEstimator:
    """Estimates steps of one model on one kind of hardware."""

    model: Model
    is_training: bool
    timer: StepTimer
    operation_timer: OperationTimer
    framework: Framework | None = None  # None: the usual one for the hardware and the mesh
    schedule: PipelineSchedule = ONE_F_ONE_B
    dtype: str = "bf16"  # of the products with weights
    _operations: dict[object, _TimedOperations] = field(default_factory=dict)
    _frameworks: dict[MeshSizes, Framework] = field(default_factory=dict)
    # by framework; not copied by `replace`, which may give another `operation_timer`
    _timers: dict[str, OperationTimer] = field(default_factory=dict, init=False)
    _model_flops: dict[tuple[Architecture, Workload], float] = field(default_factory=dict)
    # the collectives for the weights that were counted last
    _collectives: tuple[Weights, dict[object, CollectiveTimes]] | None = None

    def estimate(
        self, arch: Architecture, work: ShardedWork, workload: Workload, *, cache_bytes: int = 0
    ) -> tuple[StepTime, str]:
        """Return the time of a step, and the placement of the mesh on the network as text.

        `cache_bytes` are the keys and values that a device reads for one token.
        """
        shards = workload_shards(work.mesh)
        timed = self._time_operations(arch, work, workload, shards, cache_bytes)
        n_stages, n_microbatches = shards.stage.n_shards, workload.n_microbatches
        operations = _operations_of_step(arch, timed, n_stages, n_microbatches)
        busy = sum(operation.total_seconds for operation in operations)
        loss = self.operation_timer.figure("overlap_loss", default=0.0)
        collectives = self._time_collectives(arch, work, workload)
        placement, times = self.timer.choose_placement(collectives, busy, loss)
        n_devices = work.mesh.n_devices
        framework = self.framework_for(work.mesh)
        step = StepTime(
            flops=sum(operation.flops * operation.count for operation in operations) * n_devices,
            model_flops=self._count_flops(arch, workload),
            peak_flops=self.operation_timer.peak_flops() * n_devices,
            operations=operations,
            collectives=times,
            overhead_seconds=self.operation_timer.figure("step_overhead", default=0.0)
            + framework.step_overhead,
            overlap_loss=loss,
            error=self._step_error(arch),
            framework=framework.title,
            unit="step" if self.is_training else "token",
        )
        if n_stages > 1:
            # A stage waits for what the other stages do with a microbatch, communication included.
            work_seconds = n_microbatches * _total_seconds(timed.layers) + step.exposed_seconds
            schedule = self.schedule.for_layers(shards.stage.per_device(arch.layers))
            share = bubble_fraction(schedule, n_stages, n_microbatches)
            step = replace(step, bubble_seconds=share * work_seconds)
        return step, placement.description

    def estimate_prefill(
        self, arch: Architecture, work: ShardedWork, workload: Workload
    ) -> StepTime:
        """Return the time to read all prompts of the batch: until the first token of each."""
        shards, framework = workload_shards(work.mesh), self.framework_for(work.mesh)
        forward = prefill_operations(
            arch, work.products, shards, workload, dtype=self.dtype, framework=framework
        )
        timer = self._timer_for(framework)
        operations = tuple(timer.time(item) for item in (*forward.layers, *forward.head))
        is_wide = work.has_wide_experts
        collectives = tuple(
            prefill_collectives(arch, work.mesh, workload, has_wide_experts=is_wide)
        )
        times = self.timer.fastest_placement(self._rank_order(work.mesh), collectives)[1]
        n_devices = work.mesh.n_devices
        flops = sum(operation.flops * operation.count for operation in operations) * n_devices
        return StepTime(
            flops=flops,
            model_flops=flops,  # a forward pass repeats nothing
            peak_flops=self.operation_timer.peak_flops() * n_devices,
            operations=operations,
            collectives=times,
            overhead_seconds=framework.step_overhead,
            error=self.operation_timer.figure("default_time_error", default=0.0),
            framework=framework.title,
            unit="prefill",
        )

    def _time_operations(
        self,
        arch: Architecture,
        work: ShardedWork,
        workload: Workload,
        shards: WorkloadShards,
        cache_bytes: int,
    ) -> _TimedOperations:
        update_bytes = 2 * _sum_kinds(work.weights, _UPDATED_KINDS)
        update_bytes += _sum_kinds(work.weights, ("gradients",))
        framework = self.framework_for(work.mesh)
        key = (work.products, shards, workload, update_bytes, cache_bytes, framework.name)
        if key not in self._operations:
            operations = (
                training_operations(
                    arch,
                    work.products,
                    shards,
                    workload,
                    update_bytes=update_bytes,
                    dtype=self.dtype,
                    repeated=recomputation(workload, framework),
                    framework=framework,
                )
                if self.is_training
                else decoding_operations(arch, work.products, shards, workload, cache_bytes)
            )
            timer = self._timer_for(framework)
            self._operations[key] = _TimedOperations(
                *(
                    tuple(map(timer.time, part))
                    for part in (operations.layers, operations.head, operations.update)
                )
            )
        return self._operations[key]

    def _count_flops(self, arch: Architecture, workload: Workload) -> float:
        """Return the FLOPs that the model needs for one step; equal on all meshes."""
        key = arch, workload
        if key not in self._model_flops:
            count_flops = training_flops if self.is_training else decoding_flops
            self._model_flops[key] = count_flops(self.model, arch, workload)
        return self._model_flops[key]

    def _timer_for(self, framework: Framework) -> OperationTimer:
        """Return the timer of a framework; all of them collect the same `used` figures."""
        if framework.name not in self._timers:
            self._timers[framework.name] = replace(self.operation_timer, framework=framework)
        return self._timers[framework.name]

    def framework_for(self, mesh: Mesh) -> Framework:
        """Return the framework whose efficiency is assumed on a mesh."""
        if not self.is_training:
            return SERVING
        if self.framework is not None:
            return self.framework
        sizes = tuple(mesh.shape.items())
        if sizes not in self._frameworks:
            framework = mesh_framework(self.timer.hardware, mesh, self.model.architecture)
            self._frameworks[sizes] = framework
        return self._frameworks[sizes]

    def _time_collectives(
        self, arch: Architecture, work: ShardedWork, workload: Workload
    ) -> CollectiveTimes:
        """Return the collectives, equal for all remat policies that repeat no forward pass."""
        key = workload.n_microbatches, repeats_forward(workload)
        # One entry is enough: all remat policies of a placement come one after the other.
        if self._collectives is None or self._collectives[0] is not work.weights:
            self._collectives = work.weights, {}
        cache = self._collectives[1]
        if key not in cache:
            collectives = (
                training_collectives(
                    arch,
                    work.weights,
                    work.mesh,
                    workload,
                    self.schedule,
                    self.operation_timer.figure("exposed_share", default=1.0),
                    self.framework_for(work.mesh).gathered_bits(self.dtype),
                    self._expert_nodes(work),
                    work.has_wide_experts,
                )
                if self.is_training
                else decoding_collectives(
                    arch, work.mesh, workload, has_wide_experts=work.has_wide_experts
                )
            )
            mesh_sizes = self._rank_order(work.mesh)
            cache[key] = self.timer.time_collectives(mesh_sizes, tuple(collectives))
        return cache[key]

    def _step_error(self, arch: Architecture) -> float:
        """Return the relative error within which 90 % of published runs are.

        Mixtures of experts have their own on a chip: their dispatchers differ by up to two times.
        """
        figure = self.operation_timer.figure
        error = figure("step_time_error" if self.framework else "default_time_error", default=0.0)
        if not (arch.experts and self.is_training and error):
            return error
        return max(error, figure("expert_time_error", default=_EXPERT_ERROR))

    def _expert_nodes(self, work: ShardedWork) -> int:
        """Return the nodes that an expert group spans; on a torus there are no nodes."""
        hardware, roles = self.timer.hardware, mesh_axis_roles(work.mesh)
        axes = roles.get("expert", ())
        if work.has_wide_experts:
            axes = (*axes, *roles.get("tensor", ()))
        if hardware.network != "switch" or not axes:
            return 1
        return spans_of(self._rank_order(work.mesh), axes, hardware.domain).n_nodes

    def _rank_order(self, mesh: Mesh) -> MeshSizes:
        """Return the mesh axes in the order of ranks, outermost first."""
        sizes = tuple(mesh.shape.items())
        if not self.framework_for(mesh).orders_ranks:
            return sizes
        roles = {name: role for role, names in mesh_axis_roles(mesh).items() for name in names}
        return tuple(sorted(sizes, key=lambda size: _RANK_ORDER.index(roles.get(size[0], ""))))


def _operations_of_step(
    arch: Architecture, timed: _TimedOperations, n_stages: int, n_microbatches: int
) -> tuple[OperationTime, ...]:
    """Return the operations of the slowest stage, over all microbatches."""
    layers = timed.layers
    if n_stages > 1 and arch.layers % n_stages:
        # The last stage has the layers that are left; with the output table it may still be the
        # slowest.
        fullest = -(-arch.layers // n_stages)
        last_share = max(arch.layers - fullest * (n_stages - 1), 0) / fullest
        last_seconds = last_share * _total_seconds(layers) + _total_seconds(timed.head)
        if last_seconds <= _total_seconds(layers):
            return (*_repeat(layers, n_microbatches), *timed.update)
        layers = _scale_counts(layers, last_share)
    return (*_repeat((*layers, *timed.head), n_microbatches), *timed.update)


def _repeat(times: Sequence[OperationTime], n: int) -> tuple[OperationTime, ...]:
    if n == 1:
        return tuple(times)
    return _scale_counts(times, n)


def _scale_counts(times: Iterable[OperationTime], factor: float) -> tuple[OperationTime, ...]:
    """Return operations that are executed `factor` times as often.

    Constructed and not copied by `replace`, which takes several times as long: a search scales
    hundreds of thousands of them.
    """
    return tuple(
        OperationTime(
            name=time.name,
            count=time.count * factor,
            seconds=time.seconds,
            flops=time.flops,
            bound=time.bound,
        )
        for time in times
    )


def _total_seconds(times: Iterable[OperationTime]) -> float:
    return sum(time.total_seconds for time in times)


def _sum_kinds(weights: Weights, kinds: Sequence[str]) -> int:
    return sum(
        n_bytes
        for group in weights.values()
        for kind, n_bytes in group.by_kind.items()
        if kind in kinds
    )
