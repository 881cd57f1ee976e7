"""Candidates: the ways to cut a model over so many devices, each weighed and timed.

For one mesh the strategy follows from its axes; what is left to choose is the ZeRO stage over the
data axis, the remat policy, and into how many microbatches the batch is divided: as few as fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from shardlab.cost.step import Stopwatch
from shardlab.layouts.amount import memory_text
from shardlab.layouts.divisors import divisors
from shardlab.layouts.mesh import Mesh
from shardlab.plans.model import Architecture, Model
from shardlab.plans.plan import plan_items
from shardlab.plans.strategy import parse_strategy, place
from shardlab.plans.traffic import decoding_exchanges, training_exchanges
from shardlab.plans.weights import Scales, Sync, Weight
from shardlab.plans.work import Work, decoding_work, training_work
from shardlab.plans.workload import Workload
from shardlab.records.advice import Candidate, Why
from shardlab.records.plan import KINDS, Kind, Room
from shardlab.records.step import StepTime

# outermost first, so that tensor stays within a node
AXES = ("data", "fsdp", "expert", "context", "tensor")
_BATCH = ("data", "fsdp", "expert")
_MANY = 2**31  # sequences on a device
_CUTTING = ("fsdp", "expert", "tensor")  # parts of a strategy, which cut parameters


@dataclass
class Search:
    """What is looked for, and what has been counted on the way."""

    model: Model
    room: Room
    scales: Scales
    stopwatch: Stopwatch
    workload: Workload | None
    remats: tuple[str, ...]
    zeros: tuple[int, ...]
    compute_efficiency: float
    _activations: dict[object, dict[Kind, int]] = field(default_factory=dict)
    _works: dict[str, Work] = field(default_factory=dict)

    @property
    def is_training(self) -> bool:
        return self.scales.optimizer != "none"

    def candidates(self, sizes: Mapping[str, int]) -> Iterator[Candidate]:
        """Yield the ways to cut the model over one mesh, or the mesh refused."""
        axes = tuple((name, size) for name, size in sizes.items() if size > 1)
        if {name for name, _ in axes} <= {"context"}:
            axes = (("data", 1), *axes)  # which the strategy data-parallel asks for
        if refused := self._refusal(sizes):
            yield Candidate(axes, why=refused[0], reason=refused[1])
            return
        mesh = Mesh(axes)
        parts = [name for name in _CUTTING if sizes.get(name, 1) > 1]
        zeros = self.zeros if sizes.get("data", 1) > 1 else (0,)
        placed = tuple(place(self.model, parse_strategy(_strategy(parts, max(zeros))), mesh))
        for zero in zeros:
            weights = self.scales.weigh(placed, mesh, zero)
            for remat in self.remats:
                yield self._candidate(mesh, _strategy(parts, zero), remat, weights)

    def _refusal(self, sizes: Mapping[str, int]) -> tuple[Why, str] | None:
        """Return why a mesh does not suit the model or the batch."""
        arch, tensor, expert = (
            self.model.architecture,
            sizes.get("tensor", 1),
            sizes.get("expert", 1),
        )
        for size, noun in _measures(arch) if arch else ():
            if size % tensor:
                return "model", f"tensor={tensor} does not divide {size:,} {noun}"
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
        self, mesh: Mesh, strategy: str, remat: str, weights: Mapping[Sync, Weight]
    ) -> Candidate:
        held = {kind: sum(each.by_kind[kind] for each in weights.values()) for kind in KINDS}
        made = Candidate(tuple(mesh.shape.items()), strategy, remat if self.is_training else "")
        arch = self.model.architecture
        for workload in self._workloads(mesh, remat):
            items = self._items(mesh, workload)
            held_all = {kind: n_bytes + items.get(kind, 0) for kind, n_bytes in held.items()}
            made = replace(
                made,
                bytes_by_kind=held_all,
                n_microbatches=workload.n_microbatches if workload else 1,
            )
            if made.bytes_per_device <= self.room.usable_bytes:
                if arch is None or workload is None:
                    return made
                return self._timed(made, mesh, arch, workload, weights)
        return replace(made, why="memory", reason=_too_large(made, self.room))

    def _workloads(self, mesh: Mesh, remat: str) -> Iterator[Workload | None]:
        """Yield the workload in ever more microbatches, unless their size was given."""
        if self.workload is None:
            yield None
            return
        workload = replace(self.workload, remat=remat)
        if workload.microbatch is not None or not self.is_training:
            yield workload
            return
        shards = prod(mesh.shape.get(name, 1) for name in _BATCH)
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
        arch: Architecture,
        workload: Workload,
        weights: Mapping[Sync, Weight],
    ) -> Candidate:
        watch, reading = self.stopwatch, 0.0
        work = self._work(arch, workload)
        if self.is_training:
            exchanges = tuple(training_exchanges(arch, weights, mesh, workload))
        else:
            exchanges = tuple(decoding_exchanges(arch, mesh, workload))
            reading = watch.reading(made.bytes_per_device)
        laid, timed = watch.quickest(made.mesh, exchanges)
        seconds = watch.compute(work.flops, mesh.n_devices, self.compute_efficiency)
        peak = watch.peak(mesh.n_devices)
        step = StepTime(work.flops, work.model_flops, seconds, peak, timed, reading)
        return replace(made, step=step, laid=laid.words)

    def _work(self, arch: Architecture, workload: Workload) -> Work:
        if workload.remat not in self._works:
            count = training_work if self.is_training else decoding_work
            self._works[workload.remat] = count(self.model, arch, workload)
        return self._works[workload.remat]


def _strategy(parts: Sequence[str], zero: int) -> str:
    """Return the name of what cuts parameters, and of the ZeRO stage."""
    return "+".join([*parts, *([f"zero{zero}"] if zero else [])]) or "data-parallel"


def _measures(arch: Architecture) -> Iterator[tuple[int, str]]:
    if not arch.kv_lora_rank:
        yield arch.kv_heads, "kv heads"
    yield arch.heads, "heads"
    yield arch.ffn, "columns of the feed-forward part"
    if arch.dense_ffn:
        yield arch.dense_ffn, "columns of the dense feed-forward part"


def _too_large(made: Candidate, room: Room) -> str:
    kind, n_bytes = max(made.bytes_by_kind.items(), key=lambda item: item[1])
    needed, usable = memory_text(made.bytes_per_device), memory_text(room.usable_bytes)
    noun = kind.replace("_", " ")
    return f"does not fit: {needed} of {usable}, {noun} {memory_text(n_bytes)}"
