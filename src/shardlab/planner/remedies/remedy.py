"""The cheapest change that makes a plan fit, found by planning each again.

Changes are tried in the order of what they cost a person: first those that cost some communication
(ZeRO stages, cutting what is whole, the same devices in another mesh), then arithmetic (remat),
time (gradient accumulation), precision (moments in bf16, a cache in int8), and last fewer devices
that divide the model, more devices, or a smaller batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from shardlab.errors import LabError
from shardlab.planner.findings.divisibility import indivisible, uneven_cuts
from shardlab.planner.findings.mesh_usage import idle_axes
from shardlab.planner.findings.replication import cut_of
from shardlab.planner.findings.unsharded import excess_of
from shardlab.planner.memory.batch_shards import shares_of
from shardlab.planner.memory.workload import Workload
from shardlab.planner.plan import Plan, spec_json
from shardlab.planner.plan_request import PlanRequest
from shardlab.planner.remedies.mesh_remedies import (
    Tried,
    fewer,
    mesh_text,
    more,
    new_axis,
    splits,
    tensor_in_serving,
    tensor_in_training,
    work_on,
)
from shardlab.planner.rules.rules import PathSpec, Rules
from shardlab.planner.strategies.axis_roles import mesh_axis_roles
from shardlab.planner.strategies.strategy import parse_strategy, strategy_name
from shardlab.sharding.dtype import Dtype, parse_dtype
from shardlab.sharding.spec import Spec

Again = Callable[[PlanRequest], Plan]
Kind = Callable[[PlanRequest, Plan], Tried]
_FEW_TIMES = 4  # so many times the devices are worth a word beside a change that needs none
_LITTLE = 0.05  # of the bytes, that a strategy could not cut
_FINE = 64  # sequences on a device, from which on each number is tried
_WORTH = 0.99  # of the bytes: what saves less is not worth a change
_REMAT = ("none", "selective", "dots", "full")


@dataclass(frozen=True)
class Change:
    """Other choices, in words, and the plan they give."""

    words: str
    asked: PlanRequest
    plan: Plan

    def to_json(self, before: PlanRequest) -> dict[str, Any]:
        """Return the words, the bytes, and what is to be asked for in place of what was."""
        after, options = self.asked, dict[str, Any]()
        if after.mesh != before.mesh:
            options["mesh"] = mesh_text(after.mesh)
        if after.strategy != before.strategy:
            options["strategy"] = after.strategy
        if (moments := after.policy.moments) != before.policy.moments and moments is not None:
            options["moments"] = moments.short
        if after.workload is not None and after.workload != before.workload:
            options["workload"] = _other_fields(before.workload, after.workload)
        if after.rules is not before.rules:
            n_new = len(after.rules.specs) - len(before.rules.specs)
            new = after.rules.specs[: max(n_new, 0)]
            options["specs"] = [[each.pattern, spec_json(each.spec)] for each in new] or None
        bytes_per_device = self.plan.bytes_per_device
        return {"words": self.words, "bytes_per_device": bytes_per_device, "options": options}


def _other_fields(before: Workload | None, after: Workload) -> dict[str, Any]:
    found = {}
    for field in fields(Workload):
        value = getattr(after, field.name)
        if before is None or value != getattr(before, field.name):
            found[field.name] = value.short if isinstance(value, Dtype) else value
    return found


def fitting_changes(plan: Plan, asked: PlanRequest, again: Again) -> list[Change]:
    """Return the changes that each make the plan fit, the cheapest first.

    Where none does alone, it is one change: as many of them together as it takes. Nothing where
    even that does not help. One that leaves much uncut is told only where no other is found.
    """
    # Where a spec does not divide, nothing but other specs can help.
    is_sound = next(uneven_cuts(plan, asked.mesh), None) is None
    found: list[Change] = []
    for kind in _kinds(plan, asked) if is_sound else (_named,):
        if kind in (fewer, _even_batch, new_axis) and found:
            continue  # the same devices do
        tried = kind(asked, plan)
        if kind is more and found:
            tried = filter(partial(_is_near, asked), tried)
        if (change := _first_fitting(tried, asked, again)) is not None:
            found.append(change)
    clean = [change for change in found if _is_clean(change, asked)]
    if clean or found or not is_sound:
        return clean or found[:1]
    if joined := _together(plan, asked, again):
        return joined
    last = _first_fitting(tensor_in_training(asked, plan), asked, again)
    return [] if last is None else [last]


def _kinds(plan: Plan, asked: PlanRequest) -> tuple[Kind, ...]:
    """Return what to try, in order: where sizes do not divide, other sizes first."""
    if _left(plan) <= _LITTLE * plan.bytes_per_device:
        return _KINDS
    return (splits, *(kind for kind in _KINDS if kind is not splits))


def _left(plan: Plan) -> int:
    """Return what a device holds since its strategy could not cut all that it meant to."""
    return sum(excess_of(each, row) for row in plan.rows for each in row.declined)


def _is_near(asked: PlanRequest, tried: tuple[str, PlanRequest]) -> bool:
    """Tell whether it is the same with a few times the devices."""
    other = tried[1]
    is_same = other.strategy == asked.strategy
    return is_same and other.mesh.n_devices <= _FEW_TIMES * asked.mesh.n_devices


def _first_fitting(
    changes: Iterable[tuple[str, PlanRequest]], asked: PlanRequest, again: Again
) -> Change | None:
    """Return the first that fits with all cut as it is meant, else the first that fits."""
    fitting = None
    for words, other in changes:
        made = _made(other, again)
        if made is not None and made.fits:
            change = Change(words, other, made)
            if _is_clean(change, asked):
                return change
            fitting = fitting or change
    return fitting


def _is_clean(change: Change, asked: PlanRequest) -> bool:
    """Tell whether another mesh leaves little that the strategy cannot cut, and no axis idle."""
    plan = change.plan
    if change.asked.mesh == asked.mesh:
        return True
    return _left(plan) <= _LITTLE * plan.bytes_per_device and not idle_axes(
        plan.rows, change.asked.mesh
    )


def _together(plan: Plan, asked: PlanRequest, again: Again) -> list[Change]:
    """Apply what helps of each kind, one after the other, until it fits.

    Other numbers of devices and a smaller batch are no help unless they are enough.
    """
    words: list[str] = []
    for kind in _KINDS:
        best: Change | None = None
        for told, other in kind(asked, plan):
            made = _made(other, again)
            least = best.plan.bytes_per_device if best else _WORTH * plan.bytes_per_device
            if made is not None and made.bytes_per_device < least:
                best = Change(told, other, made)
                if made.fits:
                    return [Change(" and ".join([*words, told]), other, made)]
        if best is not None and kind not in (splits, fewer, new_axis, more, _smaller_batch):
            words.append(best.words)
            asked, plan = best.asked, best.plan
    return []


def _made(other: PlanRequest, again: Again) -> Plan | None:
    """Return the plan, or None where the choices do not go together or JAX would refuse them."""
    try:
        made = again(other)
        return None if indivisible(made, other) else made
    except LabError:
        return None


def _stages(asked: PlanRequest, plan: Plan) -> Tried:
    """Cut states, gradients and parameters over batch axes; parameters over an unused one."""
    if asked.strategy is None:
        beside = "" if asked.rules.is_empty else " beside the rules"
        for name in ("zero1", "zero2") if asked.is_training else ():
            yield f"strategy {name}{beside}", replace(asked, strategy=name)
        return
    strategy = parse_strategy(asked.strategy)
    parts = [*strategy.parts]
    first = strategy.zero_stage + 1 if asked.is_training else 3
    names = [strategy_name(parts, stage) for stage in range(first, 4)]
    if "tensor" in mesh_axis_roles(asked.mesh) and "tensor" not in parts:
        names.append(strategy_name([*parts, "tensor"], strategy.zero_stage))
    if "stage" in mesh_axis_roles(asked.mesh) and "pipeline" not in parts:
        names.append(strategy_name([*parts, "pipeline"], strategy.zero_stage))
    for name in names:
        yield f"strategy {name}", replace(asked, strategy=name)


def _cutting(asked: PlanRequest, plan: Plan) -> Tried:
    """Cut the lines that every device holds whole, the largest first."""
    if asked.strategy is not None:
        return
    n, least = asked.mesh.n_devices, (1 - _WORTH) * plan.bytes_per_device
    whole = [row for row in plan.rows if row.parameter.n_copies == n > 1]
    whole = [row for row in whole if row.bytes_per_device > least]
    whole = sorted(whole, key=lambda row: -row.bytes_per_device)[:8]
    specs: list[PathSpec] = []
    for row in whole:
        if (cut := cut_of(row, asked.mesh)) is not None:
            axis, names = cut
            entry = names[0] if len(names) == 1 else names
            specs.append(PathSpec(pattern=row.path, spec=Spec(*(None,) * axis, entry)))
            if len(specs) not in (1, 2, 4, 8) and row is not whole[-1]:
                continue  # each is a plan of its own
            rules = replace(asked.rules, specs=(*specs, *asked.rules.specs))
            more = f" and {len(specs) - 1} more" if len(specs) > 1 else ""
            told = f"cut '{specs[0].pattern}' as {specs[0].spec}{more}"
            yield told, replace(asked, rules=rules)


def _named(asked: PlanRequest, plan: Plan) -> Tried:
    """A strategy in place of rules: it prints those it stands for."""
    if asked.strategy is None:
        roles = mesh_axis_roles(asked.mesh)
        parts = [part for part in ("expert", "tensor") if part in roles]
        for stage in ("fsdp", "zero3") if {"data", "fsdp"} & set(roles) else ():
            name = strategy_name([*parts, "fsdp"], 3 if stage == "zero3" else 0)
            other = replace(asked, strategy=name, rules=Rules())
            given = "" if asked.rules.is_empty else " in place of the rules"
            yield f"strategy {name}{given}", other


def _remat(asked: PlanRequest, plan: Plan) -> Tried:
    if (work := asked.workload) is None or not asked.is_training:
        return
    known = _REMAT.index(work.remat) if work.remat in _REMAT else 0
    for policy in _REMAT[known + 1 :]:
        yield f"remat {policy}", replace(asked, workload=replace(work, remat=policy))


def _microbatches(asked: PlanRequest, plan: Plan) -> Tried:
    """The largest part of the batch first: the smaller, the less a device has to do at once."""
    if (work := asked.workload) is None or not asked.is_training:
        return
    parts, now = shares_of(asked.mesh).batch.parts, work.microbatch or work.batch
    for n in range(2, min(work.batch // parts, 4096) + 1):
        size, left = divmod(work.batch, n)
        if not left and size < now and size % parts == 0:
            told = f"a microbatch of {size:,} ({n} parts of the batch, gradients added up)"
            yield told, replace(asked, workload=replace(work, microbatch=size))


def _precision(asked: PlanRequest, plan: Plan) -> Tried:
    if not asked.is_training:
        work = asked.workload
        if work is not None and work.cache_dtype.bits > 8:
            int8 = replace(work, cache_dtype=parse_dtype("int8"))
            yield "a cache in int8", replace(asked, workload=int8)
    elif asked.policy.moments is None or asked.policy.moments.bits > 16:
        policy = replace(asked.policy, moments=parse_dtype("bf16"))
        yield "moments in bf16", replace(asked, policy=policy)


def _even_batch(asked: PlanRequest, plan: Plan) -> Tried:
    """A batch that divides, alone and with a change beside it, where the one asked for does not."""
    work = asked.workload and work_on(asked.mesh, asked.workload)
    if not work or work == asked.workload:
        return
    other, told = replace(asked, workload=work), f"a batch of {work.batch:,}"
    yield told, other
    for kind in (_stages, _remat, _microbatches, _precision):
        for words, each in kind(other, plan):
            yield f"{told} and {words}", each


def _smaller_batch(asked: PlanRequest, plan: Plan) -> Tried:
    """In training a microbatch does the same and keeps the batch."""
    if (work := asked.workload) is None or asked.is_training:
        return
    parts = shares_of(asked.mesh).batch.parts
    each = work.batch // parts
    while each > 1:
        each = each - 1 if each <= _FINE else each * 3 // 4
        size = each * parts
        yield f"a batch of {size:,}", replace(asked, workload=replace(work, batch=size))


_KINDS: tuple[Kind, ...] = (
    *(tensor_in_serving, _stages, _cutting, _named, splits, _remat, _microbatches, _precision),
    *(fewer, _even_batch, new_axis, more, _smaller_batch),
)
