"""Makes the answer from the candidates found: simplifies it, explains it, and compares it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shardlab._text.units import bytes_text, seconds_text
from shardlab.autoshard.answer import (
    ArgumentSpec,
    Autosharding,
    CollectiveUse,
    ConstraintSpec,
    GroupSpec,
    RunnerUp,
    SearchSummary,
    ShardingCost,
)
from shardlab.autoshard.arguments import Group, Leaf
from shardlab.autoshard.evaluation import MIN_GAIN, NOISE, Candidate, replace_choices
from shardlab.autoshard.search import Search
from shardlab.autoshard.spec_choices import DimAxes, n_shards, replicated, spec_of
from shardlab.autoshard.step_cost import StepCoster, weight_shapes_of
from shardlab.hardware.chips import Hardware
from shardlab.sharding.mesh import mesh_text

_MAX_RUNNERS_UP = 3
_LARGE_SHARE = 0.005  # of the bytes of all arguments: arrays above get a reason


def make_answer(
    f: Callable[..., Any],
    leaves: Sequence[Leaf],
    search: Search,
    candidates: Sequence[Candidate],
    *,
    hardware: Hardware,
    deadline: float,
    started: float,
) -> Autosharding:
    """Return the answer for the first candidate; the others are its runners-up."""
    best, alternatives = _simplify(_shard_batch(candidates[0], search), search, deadline)
    evaluator = search.evaluator
    groups = evaluator.groups
    axes = evaluator.argument_axes(best.assignment)
    return Autosharding(
        program=getattr(f, "__name__", "program"),
        mesh=_shown_mesh(best, search),
        hardware=hardware.title,
        placement=best.cost.placement,
        memory_limit=evaluator.memory_limit,
        arguments=tuple(
            ArgumentSpec(name=leaf.name, spec=spec_of(leaf_axes))
            for leaf, leaf_axes in zip(leaves, axes, strict=True)
        ),
        groups=tuple(
            _group_spec(group, choice, best, alternatives.get(index))
            for index, (group, choice) in enumerate(zip(groups, best.assignment, strict=True))
            if group.point is None and choice is not None
        ),
        constraints=_constraint_specs(groups, best),
        collectives=_collective_uses(best, search),
        cost=_sharding_cost("this answer", best, search),
        busy_seconds=best.cost.step.busy_seconds,
        comparison=tuple(
            _sharding_cost(name, candidate, search) for name, candidate in search.starts.items()
        ),
        search=SearchSummary(
            n_candidates=evaluator.n_partitioned,
            seconds=time.monotonic() - started,
            is_exhaustive=search.is_exhaustive,
            is_complete=search.is_complete,
            seed=search.seed,
            is_interrupted=search.is_interrupted,
        ),
        runners_up=tuple(
            RunnerUp(
                mesh=_shown_mesh(other, search),
                specs=tuple(map(spec_of, evaluator.argument_axes(other.assignment))),
                constraints=_constraint_specs(groups, other),
                seconds=other.seconds,
                memory_bytes=other.memory_bytes,
            )
            for other in candidates[1 : 1 + _MAX_RUNNERS_UP]
        ),
        assumptions=_assumptions(search, best),
    )


def _shard_batch(candidate: Candidate, search: Search) -> Candidate:
    """Shard the batch where the estimate cannot tell that from replicating it.

    A constraint on the first product slices a replicated batch for nothing; but loading the whole
    batch on every device is not what anyone wants.
    """
    evaluator, best = search.evaluator, candidate
    usual = search.starts.get("data parallel")
    if usual is None or usual.mesh != candidate.mesh:
        return best
    fitting = [item.seconds for item in search.starts.values() if evaluator.fits(item)]
    # Slower by what is noise, but not slower than a well-known sharding by more than that.
    slowest = max(min([candidate.seconds * (1 + NOISE), *fitting]), candidate.seconds)
    for index, group in enumerate(evaluator.groups):
        is_batch = group.point is None and not group.is_state and not group.is_fixed
        if is_batch and not any(best.assignment[index] or ()):
            changes = {index: usual.assignment[index]}
            other = evaluator.evaluate(best.mesh, replace_choices(best.assignment, changes))
            if other is not None and evaluator.fits(other) and other.seconds <= slowest:
                best = other
    return best


def _simplify(
    candidate: Candidate, search: Search, deadline: float
) -> tuple[Candidate, dict[int, Candidate]]:
    """Replicate what gains nothing by its sharding, and drop constraints that gain nothing.

    Returns the simpler candidate and, for each group that stays sharded, the alternative.
    """
    evaluator, best = search.evaluator, candidate
    alternatives: dict[int, Candidate] = {}
    total = sum(group.n_bytes for group in evaluator.groups)
    # Simpler may be slower by what the estimate cannot tell, but not than a well-known sharding.
    fitting = [item for item in search.starts.values() if evaluator.fits(item)]
    slowest = min([best.seconds * (1 + MIN_GAIN / 2), *(item.seconds for item in fitting)])
    slowest = max(slowest, best.seconds)
    for index, group in enumerate(evaluator.groups):
        choice = best.assignment[index]
        simple: DimAxes | None = None if group.point is not None else replicated(group.shape)
        is_large = group.point is not None or group.n_bytes >= _LARGE_SHARE * total
        if group.is_fixed or choice == simple or time.monotonic() > deadline:
            continue
        is_batch = group.point is None and not group.is_state
        if is_batch and not is_large:
            continue
        other = evaluator.evaluate(best.mesh, replace_choices(best.assignment, {index: simple}))
        if other is None:
            continue
        if is_batch:  # loaded shard by shard, whatever the first operation gathers
            alternatives[index] = other
            continue
        is_no_slower = other.seconds <= slowest
        # Replicating what is not large costs memory that no one misses.
        is_no_larger = other.memory_bytes <= best.memory_bytes * 1.02
        if is_no_slower and is_no_larger and evaluator.fits(other):
            best = other
        elif is_large:
            alternatives[index] = other
    return best, alternatives


def _group_spec(
    group: Group, choice: DimAxes, best: Candidate, other: Candidate | None
) -> GroupSpec:
    return GroupSpec(
        name=group.name,
        shape=group.shape,
        dtype=group.dtype,
        n_arrays=len(group.leaves),
        n_bytes=group.n_bytes,
        local_bytes=group.n_bytes // n_shards(choice, dict(best.mesh)),
        spec=spec_of(choice),
        is_kept=group.is_fixed,
        replicated_seconds=None if other is None else other.seconds,
        replicated_bytes=None if other is None else other.memory_bytes,
        reason=_reason(group, choice, best, other),
    )


def _reason(group: Group, choice: DimAxes, best: Candidate, other: Candidate | None) -> str:
    """Return why a group has its spec, by what replicating it would change."""
    if group.is_fixed:
        return "kept: you annotated it"
    if not any(choice):
        return "sharding it makes the step no faster" if group.is_state else "replicated"
    if other is None:
        return ""
    axes = " and ".join(dict.fromkeys(name for names in choice for name in names))
    saved, gained = other.memory_bytes - best.memory_bytes, other.seconds - best.seconds
    parts = []
    if abs(saved) >= 2**20:
        parts.append(f"{'saves' if saved > 0 else 'takes'} {bytes_text(abs(saved))} a device")
    if saved > 0 > gained >= -NOISE * best.seconds:
        parts.append(f"costs less than {NOISE:.0%} of the step, which the estimate cannot tell")
    elif abs(gained) >= best.seconds * 1e-4:
        verb = "saves" if gained > 0 else "costs"
        parts.append(f"{verb} {seconds_text(abs(gained))} a step")
    text = f"sharding it over {axes} {' and '.join(parts) or 'changes little'}"
    added = _added_collective(group, best, other)
    return f"{text}; {added}" if added else text


def _added_collective(group: Group, best: Candidate, other: Candidate) -> str:
    """Return the largest collective that the sharded program has more often than the other."""
    before, after = _collective_counts(other), _collective_counts(best)
    added = {call: n - before.get(call, 0) for call, n in after.items() if n > before.get(call, 0)}
    # Collectives of the array itself say most; those of activations may come with it.
    own = {call: n for call, n in added.items() if call.shape in weight_shapes_of([group.shape])}
    if not added:
        return ""
    call, count = max((own or added).items(), key=lambda item: item[0].n_bytes * item[1])
    times = f", {count} times" if count > 1 else ""
    kind = call.kind.replace("_", "-")
    return (
        f"it needs {_article(kind)} {kind} of {bytes_text(call.n_bytes)}{times}, at {call.source}"
    )


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"


@dataclass(frozen=True, kw_only=True)
class _Call:
    """What equal collectives have in common; `n_bytes` is the larger of operand and result."""

    kind: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    n_bytes: int
    source: str


def _collective_counts(candidate: Candidate) -> dict[_Call, int]:
    counts: dict[_Call, int] = {}
    for call in candidate.program.collectives:
        key = _Call(
            kind=call.kind,
            axes=call.axes,
            shape=call.shape,
            n_bytes=max(call.operand_bytes, call.result_bytes),
            source=call.source,
        )
        counts[key] = counts.get(key, 0) + call.count
    return counts


def _constraint_specs(groups: Sequence[Group], candidate: Candidate) -> tuple[ConstraintSpec, ...]:
    return tuple(
        ConstraintSpec(
            source=group.source,
            shape=group.shape,
            spec=spec_of(choice),
            is_carry=group.is_carry,
        )
        for group, choice in zip(groups, candidate.assignment, strict=True)
        if group.point is not None and choice is not None
    )


def _collective_uses(best: Candidate, search: Search) -> tuple[CollectiveUse, ...]:
    """Return the collectives of a step, equal ones of a line together, the slowest first."""
    coster = search.evaluator.coster
    uses: dict[tuple[Any, ...], CollectiveUse] = {}
    for call, seconds in coster.collective_seconds(best.program, best.mesh):
        key = call.kind, call.axes, call.operand_bytes, call.source
        before = uses.get(key)
        uses[key] = CollectiveUse(
            kind=call.kind,
            axes=call.axes,
            operand_bytes=call.operand_bytes,
            result_bytes=call.result_bytes,
            count=call.count + (before.count if before else 0),
            seconds=seconds + (before.seconds if before else 0.0),
            is_overlapped=coster.is_of_weights(call),
            source=call.source,
        )
    return tuple(sorted(uses.values(), key=lambda use: -use.seconds))


def _sharding_cost(name: str, candidate: Candidate, search: Search) -> ShardingCost:
    return ShardingCost(
        name=name,
        mesh=_shown_mesh(candidate, search),
        seconds=candidate.seconds,
        memory_bytes=candidate.memory_bytes,
        communication_seconds=candidate.cost.step.communication_seconds,
        fits=search.evaluator.fits(candidate),
    )


def _assumptions(search: Search, best: Candidate) -> tuple[str, ...]:
    coster = search.evaluator.coster
    share = coster.operation_timer.figure("exposed_share", default=1.0)
    texts = [
        "Parameters are gathered and gradients reduced while the devices compute; "
        f"{share:.0%} of other all-reduces, all-gathers and reduce-scatters are waited for.",
        "Arguments that come back with the same shapes are donated, and come back with the same "
        "shardings.",
        "Memory is arguments plus what is alive at once in program order; the compiler may "
        "schedule better or worse.",
    ]
    if any(product.dtype == "f32" for product in best.program.products):
        texts.append(_float32_text(coster))
    if best.program.has_unknown_trip_count:
        texts.append("A loop without a known number of iterations counts as one.")
    return tuple(texts)


def _float32_text(coster: StepCoster) -> str:
    if coster.has_tf32:
        return (
            "Products of float32 are computed in TF32, the default of XLA on NVIDIA GPUs, at half "
            "the bf16 rate."
        )
    if coster.hardware.name.startswith("tpu"):
        return (
            "Products of float32 are computed in one bf16 pass, the default precision of JAX on "
            "TPUs."
        )
    return "Products of float32 are timed at the bf16 rate, because no other rate is known here."


def _shown_mesh(candidate: Candidate, search: Search) -> str:
    """Return the mesh as text; axes of size 1 only if the person named them."""
    if not search.is_of_meshes:
        return mesh_text(candidate.mesh)
    return mesh_text([axis for axis in candidate.mesh if axis[1] > 1] or candidate.mesh[:1])
