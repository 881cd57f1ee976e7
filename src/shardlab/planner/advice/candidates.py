"""Candidates: the ways to cut a model over so many devices, each weighed and timed.

For one mesh the strategy follows from its axes; what is left to choose is the ZeRO stage over the
data axis, the remat policy, and into how many microbatches the batch is divided: as few as fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from shardlab._text.units import bytes_text
from shardlab.errors import TooManyDevices
from shardlab.hardware.step_time import StepTime
from shardlab.hardware.step_timer import CollectiveSpan, StepTimer
from shardlab.planner.advice.activation_margin import margin_of
from shardlab.planner.advice.advice import Candidate, Why
from shardlab.planner.advice.communication import decoding_exchanges, training_exchanges
from shardlab.planner.advice.step_flops import (
    Copies,
    Work,
    copies_of,
    decoding_work,
    is_expert,
    is_forward_repeated,
    training_work,
)
from shardlab.planner.advice.weight_bytes import Scales, Sync, Weight
from shardlab.planner.make_plan import plan_items
from shardlab.planner.memory.workload import Workload
from shardlab.planner.model import Architecture, Model
from shardlab.planner.plan import KINDS, Kind, MemoryBudget
from shardlab.planner.rules.matching import ShardedGroup
from shardlab.planner.strategies.strategy import parse_strategy, shard_model
from shardlab.sharding.factors import divisors, n_products, products
from shardlab.sharding.mesh import Mesh, MeshSizes

# outermost first, so that tensor stays within a node
AXES = ("data", "fsdp", "expert", "context", "tensor")
_BATCH = ("data", "fsdp", "expert")
MAX_MESHES = 20_000  # a search over more takes minutes
_MANY = 2**31  # sequences on a device
_CUTTING = ("fsdp", "expert", "tensor")  # parts of a strategy, which cut parameters


@dataclass(kw_only=True)
class Search:
    """What is looked for, and what has been counted on the way."""

    model: Model
    room: MemoryBudget
    scales: Scales
    stopwatch: StepTimer
    workload: Workload | None
    remats: tuple[str, ...]
    zeros: tuple[int, ...]
    compute_efficiency: float
    margin: float | None = None  # of activations; None: as measured for each remat policy
    _activations: dict[object, dict[Kind, int]] = field(default_factory=dict)
    _works: dict[object, Work] = field(default_factory=dict)
    _last: tuple[Mapping[Sync, Weight], dict[object, CollectiveSpan]] | None = (
        None  # of weights at work
    )
    _divided: dict[tuple[int, str], tuple[Workload, ...]] = field(default_factory=dict)

    @property
    def is_training(self) -> bool:
        return self.scales.optimizer != "none"

    def meshes(self, n_devices: int, *, with_context: bool) -> Iterator[Mapping[str, int]]:
        """Return the sizes of each axis for every mesh of so many devices.

        Inference has no use for fsdp, which would gather the parameters for every token.
        """
        arch = self.model.architecture
        has_experts = bool(arch.experts) if arch else any(map(is_expert, self.model.groups))
        wanted = {"expert": has_experts, "fsdp": self.is_training, "context": with_context}
        axes = [name for name in AXES if wanted.get(name, True)]
        n_meshes = n_products(n_devices, len(axes))
        if n_meshes > MAX_MESHES:
            raise TooManyDevices(
                f"{n_devices:,} devices can be arranged in {n_meshes:,} meshes of {len(axes)} "
                f"axes, too many to try.",
                fix=f"a number with fewer divisors, such as {1 << (n_devices.bit_length() - 1):,}.",
            )
        return (dict(zip(axes, sizes, strict=True)) for sizes in products(n_devices, len(axes)))

    @cached_property
    def least_bytes(self) -> int:
        """What all devices together hold at least: one copy of every tensor."""
        alone = Mesh(data=1)
        placed = tuple(shard_model(self.model, parse_strategy("data-parallel"), alone))
        weights = self.scales.weigh(placed, alone, 0)
        return sum(n for each in weights.values() for n in each.by_kind.values())

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the way that takes least memory fits on a mesh."""
        if self.refusal(sizes):
            return False
        mesh = Mesh(_axes(sizes))
        parts = [name for name in _CUTTING if sizes.get(name, 1) > 1]
        zero = max(self.zeros) if sizes.get("data", 1) > 1 else 0
        strategy = _strategy(parts, zero)
        placed = tuple(shard_model(self.model, parse_strategy(strategy), mesh))
        held = self.scales.weigh(placed, mesh, zero)
        weights = {kind: sum(each.by_kind[kind] for each in held.values()) for kind in KINDS}
        for remat in self.remats:
            *_, last = self._workloads(mesh, remat)
            made = self._weighed(
                Candidate(mesh=_axes(sizes), strategy=strategy, remat=remat), weights, mesh, last
            )
            if self.needed(made) <= self.room.usable_bytes and not _cuts_nothing(parts, placed):
                return True
        return False

    def candidates(self, sizes: Mapping[str, int]) -> Iterator[Candidate]:
        """Yield the ways to cut the model over one mesh, or the mesh refused."""
        axes = _axes(sizes)
        if refused := self.refusal(sizes):
            yield Candidate(mesh=axes, why=refused[0], reason=refused[1])
            return
        mesh = Mesh(axes)
        parts = [name for name in _CUTTING if sizes.get(name, 1) > 1]
        zeros = self.zeros if sizes.get("data", 1) > 1 else (0,)
        placed = tuple(shard_model(self.model, parse_strategy(_strategy(parts, max(zeros))), mesh))
        if idle := _cuts_nothing(parts, placed):
            reason = f"{idle}={sizes[idle]} divides no tensor of the model"
            yield Candidate(mesh=axes, why="model", reason=reason)
            return
        copies = copies_of(self.model, placed, mesh)
        for zero in zeros:
            weights = self.scales.weigh(placed, mesh, zero)
            for remat in self.remats:
                yield self._candidate(mesh, _strategy(parts, zero), remat, weights, copies)

    def refusal(self, sizes: Mapping[str, int]) -> tuple[Why, str] | None:
        """Return why a mesh does not suit the model or the batch."""
        arch, expert = self.model.architecture, sizes.get("expert", 1)
        if arch and expert > 1 and arch.experts % expert:
            return "model", f"expert={expert} does not divide {arch.experts} experts"
        shards = prod(sizes.get(name, 1) for name in _BATCH)
        if self.workload is None:
            return None
        batch, context = self.workload.microbatch or self.workload.batch, sizes.get("context", 1)
        if self.workload.sequence % context:
            return (
                "batch",
                f"context={context} does not divide sequences of {self.workload.sequence:,}",
            )
        if batch % shards == 0:
            return None
        noun = "batch" if self.workload.microbatch is None else "microbatch"
        over = " x ".join(f"{name}={sizes[name]}" for name in _BATCH if sizes.get(name, 1) > 1)
        return "batch", f"{noun} {batch:,} cannot be cut in {shards:,} ({over})"

    def _candidate(
        self,
        mesh: Mesh,
        strategy: str,
        remat: str,
        weights: Mapping[Sync, Weight],
        copies: Copies,
    ) -> Candidate:
        held = {kind: sum(each.by_kind[kind] for each in weights.values()) for kind in KINDS}
        made = Candidate(
            mesh=tuple(mesh.shape.items()),
            strategy=strategy,
            remat=remat if self.is_training else "",
        )
        edge: tuple[Candidate, Workload | None] | None = None
        for workload in self._workloads(mesh, remat):
            made = self._weighed(made, held, mesh, workload)
            if self.needed(made) <= self.room.usable_bytes:
                return self._timed(made, mesh, workload, weights, copies)
            if edge is None and made.bytes_per_device <= self.room.usable_bytes:
                edge = made, workload
        if edge is not None:  # timed too: who knows their program may take it
            made = self._timed(edge[0], mesh, edge[1], weights, copies)
        return replace(made, why="memory", reason=self._too_large(made))

    def _weighed(
        self, made: Candidate, held: Mapping[Kind, int], mesh: Mesh, workload: Workload | None
    ) -> Candidate:
        items = self._items(mesh, workload)
        n = workload.n_microbatches if workload else 1
        held_all = {kind: n_bytes + items.get(kind, 0) for kind, n_bytes in held.items()}
        return Candidate(
            mesh=made.mesh,
            strategy=made.strategy,
            remat=made.remat,
            n_microbatches=n,
            bytes_by_kind=held_all,
        )

    def needed(self, made: Candidate) -> int:
        """Return the bytes to make room for: those of the plan, and the margin of activations."""
        activations = made.bytes_by_kind.get("activations", 0)
        more = margin_of(made.remat, self.margin) - 1
        return made.bytes_per_device + int(activations * more)

    def _too_large(self, made: Candidate) -> str:
        usable = bytes_text(self.room.usable_bytes)
        needed = bytes_text(made.bytes_per_device)
        if made.bytes_per_device <= self.room.usable_bytes:
            margin = margin_of(made.remat, self.margin)
            return (
                f"fits only if activations take no more than the estimate: {needed} of {usable}, "
                f"{bytes_text(self.needed(made))} if they take {margin:g} times that"
            )
        kind, n_bytes = max(made.bytes_by_kind.items(), key=lambda item: item[1])
        noun = kind.replace("_", " ")
        return f"does not fit: {needed} of {usable}, {noun} {bytes_text(n_bytes)}"

    def _workloads(self, mesh: Mesh, remat: str) -> Sequence[Workload | None]:
        """Return the workload in ever more microbatches, unless their size was given."""
        if self.workload is None:
            return (None,)
        key = prod(mesh.shape.get(name, 1) for name in _BATCH), remat
        if key not in self._divided:
            self._divided[key] = tuple(self._divisions(*key))
        return self._divided[key]

    def _divisions(self, shards: int, remat: str) -> Iterator[Workload]:
        assert self.workload is not None  # told to `_workloads`
        workload = replace(self.workload, remat=remat)
        if workload.microbatch is not None or not self.is_training:
            yield workload
            return
        here = workload.batch // shards
        # of a number that nobody trains with, divisors would take minutes
        for n in divisors(here) if here <= _MANY else (1, here):
            yield replace(workload, microbatch=workload.batch // n) if n > 1 else workload

    def _items(self, mesh: Mesh, workload: Workload | None) -> Mapping[Kind, int]:
        """Return the bytes of the plan's items, which differ by how the mesh cuts tokens alone."""
        parts = prod(mesh.shape.get(name, 1) for name in _BATCH)
        key = (parts, mesh.shape.get("context", 1), mesh.shape.get("tensor", 1), workload)
        if key not in self._activations:
            found: dict[Kind, int] = {}
            for item in plan_items(self.model, mesh, workload, self.scales.optimizer):
                found[item.kind] = found.get(item.kind, 0) + item.bytes_per_device
            self._activations[key] = found
        return self._activations[key]

    def _timed(
        self,
        made: Candidate,
        mesh: Mesh,
        workload: Workload | None,
        weights: Mapping[Sync, Weight],
        copies: Copies,
    ) -> Candidate:
        """Return the candidate with its time, where there is a workload and the measures for it."""
        if (arch := self.model.architecture) is None or workload is None:
            return made
        watch, work = self.stopwatch, self._work(arch, workload, copies)
        reading = 0.0 if self.is_training else watch.reading(made.bytes_per_device)
        seconds = watch.compute(work.flops, mesh.n_devices, self.compute_efficiency)
        sent = self._sent(arch, mesh, workload, weights)
        laid, timed = watch.choose(sent, max(seconds, reading))
        peak = watch.peak(mesh.n_devices)
        step = StepTime(
            flops=work.flops,
            model_flops=work.model_flops,
            compute_seconds=seconds,
            peak_flops=peak,
            exchanges=timed,
            reading_seconds=reading,
        )
        return replace(made, step=step, laid=laid.words)

    def _sent(
        self, arch: Architecture, mesh: Mesh, workload: Workload, weights: Mapping[Sync, Weight]
    ) -> CollectiveSpan:
        """Return what is sent, which is alike for remat policies that compute no layer again."""
        key = workload.n_microbatches, is_forward_repeated(workload)
        if self._last is None or self._last[0] is not weights:
            self._last = weights, {}
        known = self._last[1]
        if key not in known:
            exchanges = (
                training_exchanges(arch, weights, mesh, workload)
                if self.is_training
                else decoding_exchanges(arch, mesh, workload)
            )
            known[key] = self.stopwatch.sent(tuple(mesh.shape.items()), tuple(exchanges))
        return known[key]

    def _work(self, arch: Architecture, workload: Workload, copies: Copies) -> Work:
        key = (workload.remat, copies)
        if key not in self._works:
            count = training_work if self.is_training else decoding_work
            self._works[key] = count(self.model, arch, workload, copies)
        return self._works[key]


def _axes(sizes: Mapping[str, int]) -> MeshSizes:
    axes = tuple((name, size) for name, size in sizes.items() if size > 1)
    if {name for name, _ in axes} <= {"context"}:
        return (("data", 1), *axes)  # which the strategy data-parallel asks for
    return axes


def _strategy(parts: Sequence[str], zero: int) -> str:
    """Return the name of what cuts parameters, and of the ZeRO stage."""
    return "+".join([*parts, *([f"zero{zero}"] if zero else [])]) or "data-parallel"


def _cuts_nothing(parts: Sequence[str], placed: Sequence[ShardedGroup]) -> str | None:
    """Return an axis that is to cut parameters and cuts none, since it divides none."""
    left = set(parts)
    for each in placed:
        left.difference_update(each.spec.mesh_axes)
        if not left:
            return None
    return next(name for name in parts if name in left)
