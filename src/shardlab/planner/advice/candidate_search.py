"""The search: every way to shard a model over a number of devices, with memory and step time.

For one mesh the strategy follows from its axes. What remains to choose is the ZeRO stage over the
data axis, the remat policy, and the number of microbatches: as few as fit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from shardlab._text.units import bytes_text
from shardlab.errors import TooManyDevices
from shardlab.hardware.chips import Hardware
from shardlab.planner.advice.advice import Candidate, LossKind, MeshRejection
from shardlab.planner.memory.activations import TokenMemory, count_token_memory
from shardlab.planner.memory.kv_cache import kv_cache_items
from shardlab.planner.memory.step_memory import (
    StepWeights,
    find_peak,
    memory_profile,
    with_selective_saves,
)
from shardlab.planner.memory.workload import Workload
from shardlab.planner.memory.workload_shards import WorkloadShards, workload_shards
from shardlab.planner.model import Architecture, Model
from shardlab.planner.models.transformer import stage_groups
from shardlab.planner.plan import Kind, MemoryBudget
from shardlab.planner.rules.matching import ShardedGroup
from shardlab.planner.strategies.strategy import Strategy, make_strategy, shard_model
from shardlab.planner.timing.step_estimator import ShardedWork, StepEstimator
from shardlab.planner.timing.step_flops import is_expert
from shardlab.planner.timing.timing_defaults import shards_whole_experts, with_attention_defaults
from shardlab.planner.timing.weight_bytes import WeightCounter
from shardlab.planner.timing.weight_matmuls import weight_matmuls
from shardlab.sharding.factors import count_factorizations, divisors, factorizations
from shardlab.sharding.mesh import Mesh, MeshSizes

# Outermost first, so that tensor parallelism stays within a node.
MESH_AXES = ("data", "stage", "fsdp", "expert", "context", "tensor")
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
    estimator: StepEstimator
    workload: Workload | None
    remat_policies: tuple[str, ...]
    zero_stages: tuple[int, ...]
    margin: float = 1.0  # activations may take as many times their estimate
    with_stages: bool = False  # also pipelines
    min_context_tokens: int = 1  # of a sequence on one device; more context shards are not tried
    _token_memories: dict[object, tuple[TokenMemory, WorkloadShards]] = field(default_factory=dict)
    _caches: dict[object, int] = field(default_factory=dict)
    _stage_models: dict[int, Model] = field(default_factory=dict)
    _divided_workloads: dict[tuple[int, str, bool], tuple[Workload, ...]] = field(
        default_factory=dict
    )

    @property
    def is_training(self) -> bool:
        return self.weights.optimizer.is_training

    @property
    def hardware(self) -> Hardware:
        return self.estimator.timer.hardware

    def list_meshes(self, n_devices: int, *, with_context: bool) -> Iterator[Mapping[str, int]]:
        """Yield the size of each axis for all meshes of that many devices.

        Inference has no fsdp axis, it would gather the parameters for each token. Pipelines have
        none either: FSDP would gather the weights of a stage for every microbatch.
        """
        without_stages = self._list_meshes(n_devices, {"context": with_context, "stage": False})
        yield from filter(self._has_long_shards, without_stages)
        if self.with_stages and self.is_training and self.workload is not None:
            for sizes in self._list_meshes(n_devices, {"context": with_context, "fsdp": False}):
                if sizes["stage"] > 1 and self._has_long_shards(sizes):
                    yield sizes

    def _has_long_shards(self, sizes: Mapping[str, int]) -> bool:
        """Return whether a context axis leaves each device enough tokens of a sequence."""
        n_shards = sizes.get("context", 1)
        if n_shards == 1 or self.workload is None:
            return True
        return self.workload.sequence >= n_shards * self.min_context_tokens

    def _list_meshes(
        self, n_devices: int, choices: Mapping[str, bool]
    ) -> Iterator[Mapping[str, int]]:
        arch = self.model.architecture
        has_experts = bool(arch.experts) if arch else any(map(is_expert, self.model.groups))
        is_used = {"expert": has_experts, "fsdp": self.is_training, **choices}
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
        mesh, inside = Mesh(_mesh_sizes(sizes)), _mesh_inside_stage(sizes)
        parts = _used_parts(sizes)
        zero = max(_zero_stages(self.zero_stages, sizes))
        is_flat = self.estimator.framework_for(mesh).flat_states
        strategy = replace(make_strategy(parts, zero), flat_states=is_flat)
        sharded = tuple(shard_model(self._stage_model(sizes), strategy, inside))
        counted = self.weights.count_bytes(sharded, inside, zero)
        weights = self.weights.step_weights(sharded, inside, counted)
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
        # A stage is a model with fewer layers, sharded over the other axes.
        model, inside = self._stage_model(sizes), _mesh_inside_stage(sizes)
        parts = _used_parts(sizes)
        if shards_whole_experts(self.hardware, mesh, self.model.architecture):
            parts = [*(part for part in parts if part != "expert"), "wide-expert"]
        zero_stages = _zero_stages(self.zero_stages, sizes)
        # Placed once for the highest ZeRO stage: `count_bytes` leaves out what lower stages do not
        # shard, so thousands of placements are saved.
        strategy = make_strategy(parts, max(zero_stages))
        is_flat = self.estimator.framework_for(mesh).flat_states
        sharded = tuple(shard_model(model, replace(strategy, flat_states=is_flat), inside))
        if unused := _unused_part(_used_parts(sizes), sharded):
            rejection = MeshRejection(
                before=f"{unused}=", size=sizes[unused], after=" divides no tensor of the model"
            )
            yield _rejected_candidate(axes, "model", rejection)
            return
        arch = self.model.architecture
        products = weight_matmuls(sharded, arch, inside, self.weights.policy) if arch else ()
        for zero in zero_stages:
            weights = self.weights.count_bytes(sharded, inside, zero)
            work = ShardedWork(mesh=mesh, products=products, weights=weights)
            stored = self.weights.step_weights(sharded, inside, weights)
            for remat in self.remat_policies:
                yield self._make_candidate(
                    mesh, _strategy_of(parts, sizes, zero), remat, work, stored
                )

    def reject_mesh(self, sizes: Mapping[str, int]) -> tuple[LossKind, MeshRejection] | None:
        """Return why a mesh does not divide the model or the batch."""
        arch, expert = self.model.architecture, sizes.get("expert", 1)
        if arch and expert > 1 and arch.experts % expert:
            before = f"{arch.experts} experts are not divisible by expert="
            return "model", MeshRejection(before=before, size=expert)
        n_stages = sizes.get("stage", 1)
        if arch and n_stages > max(arch.layers, 1):
            before = f"{arch.layers} layers are fewer than stage="
            return "model", MeshRejection(before=before, size=n_stages)
        tensor = sizes.get("tensor", 1)
        if arch and arch.heads % tensor and arch.hidden % tensor:
            before = f"{arch.heads} heads and width {arch.hidden:,} are not divisible by tensor="
            return "model", MeshRejection(before=before, size=tensor)
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
        work: ShardedWork,
        stored: StepWeights,
    ) -> Candidate:
        candidate = Candidate(
            mesh=tuple(mesh.shape.items()),
            strategy=strategy.name,
            zero=strategy.zero_stage,
            remat=remat if self.is_training else "",
        )
        variants = self._workload_variants(mesh, remat)

        def with_memory(workload: Workload | None) -> Candidate:
            return self._with_memory(candidate, stored, mesh, workload)

        # Fewest microbatches first: the first that fits is the fastest, unless stages wait for each
        # other.
        fastest: Candidate | None = None
        first = _first_that(
            lambda variant: self.required_bytes(with_memory(variant)) <= self.budget.usable_bytes,
            variants,
        )
        for workload in variants[first:]:
            timed = self._with_time(with_memory(workload), workload, work)
            if "stage" not in mesh.shape or timed.step is None:
                return timed
            if fastest is not None and not _is_faster(timed, fastest):
                break  # shorter waits for other stages do not make up for narrower products
            fastest = timed
        if fastest is not None:
            return fastest
        # The first variant that fits by its estimate, but not with the margin of activations.
        borderline = _first_that(
            lambda variant: with_memory(variant).bytes_per_device <= self.budget.usable_bytes,
            variants,
        )
        candidate = with_memory(variants[min(borderline, len(variants) - 1)])
        if borderline < len(variants):
            # Timed too: users who know their program's memory may choose it.
            candidate = self._with_time(candidate, variants[borderline], work)
        return replace(candidate, loss_kind="memory", reason=self._overflow_text(candidate))

    def _with_memory(
        self,
        candidate: Candidate,
        weights: StepWeights,
        mesh: Mesh,
        workload: Workload | None,
    ) -> Candidate:
        return replace(
            candidate,
            n_microbatches=workload.n_microbatches if workload else 1,
            bytes_by_kind=self._bytes_by_kind(weights, mesh, workload),
        )

    def _bytes_by_kind(
        self, weights: StepWeights, mesh: Mesh, workload: Workload | None
    ) -> Mapping[Kind, int]:
        """Return the bytes of a device; a plan of the same mesh has the same (`find_peak`)."""
        n_counters = sum(n_bytes for _, n_bytes in self.weights.optimizer.counters)
        sizes: dict[Kind, int] = {
            "parameters": weights.parameters,
            "gradients": weights.gradients,
            "optimizer": weights.optimizer + n_counters,
            "activations": 0,
            "kv_cache": 0,
        }
        if workload is None:
            return sizes
        arch = self.model.architecture
        if self.is_training and arch is not None:
            profile = memory_profile(self.estimator.framework_for(mesh).name)
            workload = with_selective_saves(workload, profile)
            tokens, shards = self._token_memory(mesh, workload, arch)
            peak = find_peak(tokens, weights, workload, shards, profile)
            sizes["activations"] = peak.activations
            sizes["optimizer"] = peak.optimizer + n_counters
            return sizes
        sizes["activations"] = max(weights.gathered.layer, weights.gathered.table)
        if not self.is_training:
            sizes["optimizer"] = weights.optimizer
            sizes["kv_cache"] = self._cache_bytes(mesh, workload)
        return sizes

    def required_bytes(self, candidate: Candidate) -> int:
        """Return the bytes of the plan plus the margin of its activations, if there is one."""
        activations = candidate.bytes_by_kind.get("activations", 0)
        return candidate.bytes_per_device + int(activations * (self.margin - 1))

    def _overflow_text(self, candidate: Candidate) -> str:
        usable = bytes_text(self.budget.usable_bytes)
        used = bytes_text(candidate.bytes_per_device)
        if candidate.bytes_per_device <= self.budget.usable_bytes:
            return (
                f"fits only if activations take no more than the estimate: {used} of {usable}, "
                f"{bytes_text(self.required_bytes(candidate))} if they take {self.margin:g} times "
                "that"
            )
        kind, n_bytes = max(candidate.bytes_by_kind.items(), key=lambda item: item[1])
        noun = kind.replace("_", " ")
        return f"does not fit: {used} of {usable}, {noun} {bytes_text(n_bytes)}"

    def _workload_variants(self, mesh: Mesh, remat: str) -> Sequence[Workload | None]:
        """Return the workload in ever more microbatches, unless their size was given."""
        if self.workload is None:
            return (None,)
        workload = with_attention_defaults(self.workload, self.estimator.framework_for(mesh))
        n_shards = prod(mesh.shape.get(name, 1) for name in _BATCH_AXES)
        key = n_shards, remat, workload.flash
        if key not in self._divided_workloads:
            variants = self._divide_workload(replace(workload, remat=remat), key[0])
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

    def _token_memory(
        self, mesh: Mesh, workload: Workload, arch: Architecture
    ) -> tuple[TokenMemory, WorkloadShards]:
        """Return what depends only on how tokens are sharded, from a cache."""
        key = (*self._token_key(mesh), workload)
        if key not in self._token_memories:
            shards = workload_shards(mesh)
            self._token_memories[key] = count_token_memory(arch, shards, workload), shards
        return self._token_memories[key]

    def _cache_bytes(self, mesh: Mesh, workload: Workload) -> int:
        key = (*self._token_key(mesh), workload)
        if key not in self._caches:
            items = kv_cache_items(self.model, mesh, workload)
            self._caches[key] = sum(item.bytes_per_device for item in items)
        return self._caches[key]

    @staticmethod
    def _token_key(mesh: Mesh) -> tuple[object, ...]:
        # Not the mesh itself: data=2,fsdp=4 and data=4,fsdp=2 shard tokens alike.
        n_shards = prod(mesh.shape.get(name, 1) for name in _BATCH_AXES)
        return n_shards, tuple(mesh.shape.get(name, 1) for name in ("context", "tensor", "stage"))

    def _with_time(
        self,
        candidate: Candidate,
        workload: Workload | None,
        work: ShardedWork,
    ) -> Candidate:
        """Return the candidate with its step time, if workload and architecture are known."""
        if (arch := self.model.architecture) is None or workload is None:
            return candidate
        step, placement = self.estimator.estimate(
            arch, work, workload, cache_bytes=candidate.bytes_by_kind.get("kv_cache", 0)
        )
        framework = self.estimator.framework_for(work.mesh).name
        return replace(candidate, step=step, placement=placement, framework=framework)

    def _stage_model(self, sizes: Mapping[str, int]) -> Model:
        """Return the model of the fullest pipeline stage; the model itself without stages."""
        n_stages, arch = sizes.get("stage", 1), self.model.architecture
        if n_stages == 1 or arch is None:
            return self.model
        if n_stages not in self._stage_models:
            n_in_stage = -(-arch.layers // n_stages)
            groups = stage_groups(self.model.groups, arch.layers, n_in_stage)
            self._stage_models[n_stages] = replace(self.model, groups=groups)
        return self._stage_models[n_stages]


def _first_that(
    fits: Callable[[Workload | None], bool], variants: Sequence[Workload | None]
) -> int:
    """Return the position of the first variant that fits; their number if none does.

    Each takes less memory than the one before, except that the second accumulates gradients.
    """
    if fits(variants[0]):
        return 0
    return 1 + bisect_left(variants[1:], True, key=fits)


def _is_faster(candidate: Candidate, other: Candidate) -> bool:
    if candidate.step is None or other.step is None:
        return False
    return candidate.step.expected < other.step.expected


def _strategy_of(parts: Sequence[str], sizes: Mapping[str, int], zero: int) -> Strategy:
    return make_strategy((*parts, "pipeline") if sizes.get("stage", 1) > 1 else parts, zero)


def _mesh_inside_stage(sizes: Mapping[str, int]) -> Mesh:
    return Mesh(_mesh_sizes({name: size for name, size in sizes.items() if name != "stage"}))


def _rejected_candidate(
    mesh: MeshSizes, loss_kind: LossKind, rejection: MeshRejection
) -> Candidate:
    return Candidate(mesh=mesh, loss_kind=loss_kind, reason=str(rejection), rejection=rejection)


def _zero_stages(stages: tuple[int, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the stages to try: where devices have other tokens and the same weights.

    With fsdp these are the devices of a data axis; fsdp also shards over expert and context axes.
    Without a data axis little is replicated, so one stage is enough.
    """
    if sizes.get("data", 1) > 1:
        return stages
    is_replicated = sizes.get("expert", 1) > 1 or sizes.get("context", 1) > 1
    if sizes.get("fsdp", 1) > 1 or not is_replicated:
        return (0,)
    return (1,) if 1 in stages else (0,)


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
