"""The search: every way to shard a model over a number of devices, with memory and step time.

For one mesh the strategy follows from its axes. What remains to choose is the ZeRO stage over the
data axis, the remat policy, and the number of microbatches: as few as fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from shardlab._text.units import bytes_text
from shardlab.errors import TooManyDevices
from shardlab.hardware.step_time import StepTime
from shardlab.hardware.step_timer import CollectiveTimes, StepTimer
from shardlab.planner.advice.advice import Candidate, LossKind, MeshRejection
from shardlab.planner.advice.step_communication import decoding_collectives, training_collectives
from shardlab.planner.advice.step_flops import (
    RedundantCompute,
    StepFlops,
    decoding_flops,
    is_expert,
    is_forward_repeated,
    redundant_compute,
    training_flops,
)
from shardlab.planner.advice.weight_bytes import WeightBytes, WeightCounter, WeightSync
from shardlab.planner.make_plan import plan_items
from shardlab.planner.memory.activations import activation_margin
from shardlab.planner.memory.workload import Workload
from shardlab.planner.model import Architecture, Model
from shardlab.planner.plan import KINDS, Kind, MemoryBudget
from shardlab.planner.rules.matching import ShardedGroup
from shardlab.planner.strategies.strategy import Strategy, make_strategy, shard_model
from shardlab.sharding.factors import count_factorizations, divisors, factorizations
from shardlab.sharding.mesh import Mesh, MeshSizes

# Outermost first, so that tensor parallelism stays within a node.
MESH_AXES = ("data", "fsdp", "expert", "context", "tensor")
MAX_MESHES = 20_000  # a search over more takes minutes
_BATCH_AXES = ("data", "fsdp", "expert")
_PARAMETER_AXES = ("fsdp", "expert", "tensor")  # and parts of a strategy: they shard parameters
_MAX_DIVIDED = 2**31  # sequences per device; factoring more would take minutes


@dataclass(kw_only=True)
class CandidateSearch:
    """The parameters of a search, and caches of what it has counted."""

    model: Model
    budget: MemoryBudget
    weights: WeightCounter
    timer: StepTimer
    workload: Workload | None
    remat_policies: tuple[str, ...]
    zero_stages: tuple[int, ...]
    compute_efficiency: float
    margin: float | None = None  # of activations; None: as measured for each remat policy
    _items: dict[object, dict[Kind, int]] = field(default_factory=dict)
    _flops: dict[object, StepFlops] = field(default_factory=dict)
    # the collectives for the weights that were counted last
    _collectives: tuple[Mapping[WeightSync, WeightBytes], dict[object, CollectiveTimes]] | None = (
        None
    )
    _divided_workloads: dict[tuple[int, str], tuple[Workload, ...]] = field(default_factory=dict)

    @property
    def is_training(self) -> bool:
        return self.weights.optimizer.is_training

    def list_meshes(self, n_devices: int, *, with_context: bool) -> Iterator[Mapping[str, int]]:
        """Yield the size of each axis for all meshes of that many devices.

        Inference has no fsdp axis, it would gather the parameters for each token.
        """
        arch = self.model.architecture
        has_experts = bool(arch.experts) if arch else any(map(is_expert, self.model.groups))
        is_used = {"expert": has_experts, "fsdp": self.is_training, "context": with_context}
        axes = [name for name in MESH_AXES if is_used.get(name, True)]
        n_meshes = count_factorizations(n_devices, len(axes))
        if n_meshes > MAX_MESHES:
            raise TooManyDevices(
                f"{n_devices:,} devices can be arranged in {n_meshes:,} meshes of {len(axes)} "
                f"axes, too many to try.",
                fix=f"a number with fewer divisors, such as {1 << (n_devices.bit_length() - 1):,}.",
            )
        return (
            dict(zip(axes, sizes, strict=True)) for sizes in factorizations(n_devices, len(axes))
        )

    @cached_property
    def min_total_bytes(self) -> int:
        """What all devices together store at least: one replica of every tensor."""
        one_device = Mesh(data=1)
        sharded = tuple(shard_model(self.model, make_strategy(()), one_device))
        weights = self.weights.count_bytes(sharded, one_device, 0)
        return sum(n_bytes for group in weights.values() for n_bytes in group.by_kind.values())

    def fits_anywhere(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the way that takes least memory fits on a mesh."""
        if self.reject_mesh(sizes):
            return False
        mesh = Mesh(_mesh_sizes(sizes))
        parts = _used_parts(sizes)
        zero = max(self.zero_stages) if sizes.get("data", 1) > 1 else 0
        strategy = make_strategy(parts, zero)
        sharded = tuple(shard_model(self.model, strategy, mesh))
        weights = _sum_by_kind(self.weights.count_bytes(sharded, mesh, zero))
        for remat in self.remat_policies:
            # The most microbatches take the least memory.
            *_, smallest = self._workload_variants(mesh, remat)
            candidate = self._with_memory(
                Candidate(mesh=_mesh_sizes(sizes), strategy=strategy.name, remat=remat),
                weights,
                mesh,
                smallest,
            )
            is_small_enough = self.required_bytes(candidate) <= self.budget.usable_bytes
            if is_small_enough and not _unused_part(parts, sharded):
                return True
        return False

    def list_candidates(self, sizes: Mapping[str, int]) -> Iterator[Candidate]:
        """Yield the ways to shard the model over one mesh, or the rejected mesh."""
        axes = _mesh_sizes(sizes)
        if rejected := self.reject_mesh(sizes):
            yield _rejected_candidate(axes, *rejected)
            return
        mesh = Mesh(axes)
        parts = _used_parts(sizes)
        zero_stages = self.zero_stages if sizes.get("data", 1) > 1 else (0,)
        # Placed once for the highest ZeRO stage: `count_bytes` leaves out what lower stages do not
        # shard, so thousands of placements are saved.
        sharded = tuple(shard_model(self.model, make_strategy(parts, max(zero_stages)), mesh))
        if unused := _unused_part(parts, sharded):
            rejection = MeshRejection(
                before=f"{unused}=", size=sizes[unused], after=" divides no tensor of the model"
            )
            yield _rejected_candidate(axes, "model", rejection)
            return
        redundant = redundant_compute(self.model, sharded, mesh)
        for zero in zero_stages:
            weights = self.weights.count_bytes(sharded, mesh, zero)
            for remat in self.remat_policies:
                strategy = make_strategy(parts, zero)
                yield self._make_candidate(mesh, strategy, remat, weights, redundant)

    def reject_mesh(self, sizes: Mapping[str, int]) -> tuple[LossKind, MeshRejection] | None:
        """Return why a mesh does not divide the model or the batch."""
        arch, expert = self.model.architecture, sizes.get("expert", 1)
        if arch and expert > 1 and arch.experts % expert:
            before = f"{arch.experts} experts are not divisible by expert="
            return "model", MeshRejection(before=before, size=expert)
        if (workload := self.workload) is None:
            return None
        context = sizes.get("context", 1)
        if workload.sequence % context:
            before = f"sequence {workload.sequence:,} is not divisible by context="
            return "batch", MeshRejection(before=before, size=context)
        batch = workload.microbatch or workload.batch
        n_shards = prod(sizes.get(name, 1) for name in _BATCH_AXES)
        if batch % n_shards == 0:
            return None
        noun = "batch" if workload.microbatch is None else "microbatch"
        used_axes = ((name, sizes.get(name, 1)) for name in _BATCH_AXES)
        axes = " x ".join(f"{name}={size}" for name, size in used_axes if size > 1)
        return "batch", MeshRejection(
            before=f"{noun} {batch:,} is not divisible by ", size=n_shards, detail=f" ({axes})"
        )

    def _make_candidate(
        self,
        mesh: Mesh,
        strategy: Strategy,
        remat: str,
        weights: Mapping[WeightSync, WeightBytes],
        redundant: RedundantCompute,
    ) -> Candidate:
        weight_bytes = _sum_by_kind(weights)
        candidate = Candidate(
            mesh=tuple(mesh.shape.items()),
            strategy=strategy.name,
            zero=strategy.zero_stage,
            remat=remat if self.is_training else "",
        )
        # The first variant that fits by its estimate, but not with the margin of activations.
        borderline: tuple[Candidate, Workload | None] | None = None
        # Fewest microbatches first: the first that fits is the fastest.
        for workload in self._workload_variants(mesh, remat):
            candidate = self._with_memory(candidate, weight_bytes, mesh, workload)
            if self.required_bytes(candidate) <= self.budget.usable_bytes:
                return self._with_time(candidate, mesh, workload, weights, redundant)
            if borderline is None and candidate.bytes_per_device <= self.budget.usable_bytes:
                borderline = candidate, workload
        if borderline is not None:
            # Timed too: users who know their program's memory may choose it.
            candidate = self._with_time(borderline[0], mesh, borderline[1], weights, redundant)
        return replace(candidate, loss_kind="memory", reason=self._overflow_text(candidate))

    def _with_memory(
        self,
        candidate: Candidate,
        weight_bytes: Mapping[Kind, int],
        mesh: Mesh,
        workload: Workload | None,
    ) -> Candidate:
        items = self._item_bytes(mesh, workload)
        return replace(
            candidate,
            n_microbatches=workload.n_microbatches if workload else 1,
            bytes_by_kind={
                kind: n_bytes + items.get(kind, 0) for kind, n_bytes in weight_bytes.items()
            },
        )

    def required_bytes(self, candidate: Candidate) -> int:
        """Return the bytes of the plan plus the margin of its activations."""
        activations = candidate.bytes_by_kind.get("activations", 0)
        extra = activation_margin(candidate.remat, self.margin) - 1
        return candidate.bytes_per_device + int(activations * extra)

    def _overflow_text(self, candidate: Candidate) -> str:
        usable = bytes_text(self.budget.usable_bytes)
        used = bytes_text(candidate.bytes_per_device)
        if candidate.bytes_per_device <= self.budget.usable_bytes:
            margin = activation_margin(candidate.remat, self.margin)
            return (
                f"fits only if activations take no more than the estimate: {used} of {usable}, "
                f"{bytes_text(self.required_bytes(candidate))} if they take {margin:g} times that"
            )
        kind, n_bytes = max(candidate.bytes_by_kind.items(), key=lambda item: item[1])
        noun = kind.replace("_", " ")
        return f"does not fit: {used} of {usable}, {noun} {bytes_text(n_bytes)}"

    def _workload_variants(self, mesh: Mesh, remat: str) -> Sequence[Workload | None]:
        """Return the workload in ever more microbatches, unless their size was given."""
        if self.workload is None:
            return (None,)
        key = prod(mesh.shape.get(name, 1) for name in _BATCH_AXES), remat
        if key not in self._divided_workloads:
            variants = self._divide_workload(replace(self.workload, remat=remat), key[0])
            self._divided_workloads[key] = tuple(variants)
        return self._divided_workloads[key]

    def _divide_workload(self, workload: Workload, n_shards: int) -> Iterator[Workload]:
        if workload.microbatch is not None or not self.is_training:
            yield workload
            return
        per_device = workload.batch // n_shards
        counts = divisors(per_device) if per_device <= _MAX_DIVIDED else (1, per_device)
        for count in counts:
            is_divided = count > 1
            yield replace(workload, microbatch=workload.batch // count) if is_divided else workload

    def _item_bytes(self, mesh: Mesh, workload: Workload | None) -> Mapping[Kind, int]:
        """Return the bytes of the plan's items, which depend only on how tokens are sharded."""
        n_shards = prod(mesh.shape.get(name, 1) for name in _BATCH_AXES)
        # Not the mesh itself: data=2,fsdp=4 and data=4,fsdp=2 shard tokens alike.
        key = (n_shards, mesh.shape.get("context", 1), mesh.shape.get("tensor", 1), workload)
        if key not in self._items:
            totals: dict[Kind, int] = {}
            for item in plan_items(self.model, mesh, workload, self.weights.optimizer):
                totals[item.kind] = totals.get(item.kind, 0) + item.bytes_per_device
            self._items[key] = totals
        return self._items[key]

    def _with_time(
        self,
        candidate: Candidate,
        mesh: Mesh,
        workload: Workload | None,
        weights: Mapping[WeightSync, WeightBytes],
        redundant: RedundantCompute,
    ) -> Candidate:
        """Return the candidate with its step time, if workload and architecture are known."""
        if (arch := self.model.architecture) is None or workload is None:
            return candidate
        timer, step_flops = self.timer, self._step_flops(arch, workload, redundant)
        # Decoding reads all weights and the cache once per token; training reuses them over
        # thousands of tokens.
        reading = 0.0 if self.is_training else timer.read_seconds(candidate.bytes_per_device)
        compute = timer.compute_seconds(step_flops.flops, mesh.n_devices, self.compute_efficiency)
        collectives = self._step_collectives(arch, mesh, workload, weights)
        placement, times = timer.choose_placement(collectives, max(compute, reading))
        step = StepTime(
            flops=step_flops.flops,
            model_flops=step_flops.model_flops,
            compute_seconds=compute,
            peak_flops=timer.peak_flops(mesh.n_devices),
            collectives=times,
            reading_seconds=reading,
        )
        return replace(candidate, step=step, placement=placement.description)

    def _step_collectives(
        self,
        arch: Architecture,
        mesh: Mesh,
        workload: Workload,
        weights: Mapping[WeightSync, WeightBytes],
    ) -> CollectiveTimes:
        """Return the collectives, equal for all remat policies that repeat no forward pass."""
        key = workload.n_microbatches, is_forward_repeated(workload)
        # One entry is enough: all remat policies of a placement come one after the other.
        if self._collectives is None or self._collectives[0] is not weights:
            self._collectives = weights, {}
        cache = self._collectives[1]
        if key not in cache:
            collectives = (
                training_collectives(arch, weights, mesh, workload)
                if self.is_training
                else decoding_collectives(arch, mesh, workload)
            )
            cache[key] = self.timer.time_collectives(tuple(mesh.shape.items()), tuple(collectives))
        return cache[key]

    def _step_flops(
        self, arch: Architecture, workload: Workload, redundant: RedundantCompute
    ) -> StepFlops:
        key = (workload.remat, redundant)
        if key not in self._flops:
            count_flops = training_flops if self.is_training else decoding_flops
            self._flops[key] = count_flops(self.model, arch, workload, redundant)
        return self._flops[key]


def _rejected_candidate(
    mesh: MeshSizes, loss_kind: LossKind, rejection: MeshRejection
) -> Candidate:
    return Candidate(mesh=mesh, loss_kind=loss_kind, reason=str(rejection), rejection=rejection)


def _sum_by_kind(weights: Mapping[WeightSync, WeightBytes]) -> dict[Kind, int]:
    return {kind: sum(group.by_kind[kind] for group in weights.values()) for kind in KINDS}


def _used_parts(sizes: Mapping[str, int]) -> list[str]:
    return [name for name in _PARAMETER_AXES if sizes.get(name, 1) > 1]


def _mesh_sizes(sizes: Mapping[str, int]) -> MeshSizes:
    axes = tuple((name, size) for name, size in sizes.items() if size > 1)
    if {name for name, _ in axes} <= {"context"}:
        return (("data", 1), *axes)  # the strategy data-parallel needs a batch axis
    return axes


def _unused_part(parts: Sequence[str], sharded: Sequence[ShardedGroup]) -> str | None:
    """Return an axis that should shard parameters and shards none, because it divides none."""
    unused = set(parts)
    for group in sharded:
        unused.difference_update(group.spec.mesh_axes)
        if not unused:
            return None
    return next(name for name in parts if name in unused)
