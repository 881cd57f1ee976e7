"""The cheapest change that makes a plan fit, found by planning each again.

Changes are tried in the order of what they cost a person: first those that cost some communication
(ZeRO stages, cutting what is whole), then arithmetic (remat), time (gradient accumulation),
precision (moments in bf16, a cache in int8), and last more devices or a smaller batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from shardlab.errors import LabError
from shardlab.layouts.dtype import parse_dtype
from shardlab.layouts.mesh import Mesh
from shardlab.layouts.spec import Spec
from shardlab.plans.asked import Asked
from shardlab.plans.questions.indivisible import indivisible, uneven_cuts
from shardlab.plans.questions.replicated import cut_of
from shardlab.plans.roles import roles_of
from shardlab.plans.rules import PathSpec, Rules
from shardlab.plans.shares import shares_of
from shardlab.plans.strategy import parse_strategy
from shardlab.plans.workload import Workload
from shardlab.records.plan import Plan

Again = Callable[[Asked], Plan]
_TIMES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512, 1024)
_FINE = 64  # sequences on a device, from which on each number is tried
_WORTH = 0.99  # of the bytes: what saves less is not worth a change
_REMAT = ("none", "selective", "dots", "full")


@dataclass(frozen=True)
class Change:
    """Other choices, in words, and the plan they give."""

    words: str
    asked: Asked
    plan: Plan


def fitting_changes(plan: Plan, asked: Asked, again: Again) -> list[Change]:
    """Return the changes that each make the plan fit, the cheapest first.

    Where none does alone, it is one change: as many of them together as it takes. Nothing where
    even that does not help.
    """
    # Where a spec does not divide, nothing but other specs can help.
    is_sound = next(uneven_cuts(plan, asked.mesh), None) is None
    kinds = _KINDS if is_sound else (_named,)
    alone = [
        found for kind in kinds if (found := _first_fitting(kind(asked, plan), again)) is not None
    ]
    return alone or (_together(plan, asked, again) if is_sound else [])


def _first_fitting(changes: Iterable[tuple[str, Asked]], again: Again) -> Change | None:
    for words, other in changes:
        made = _made(other, again)
        if made is not None and made.fits:
            return Change(words, other, made)
    return None


def _together(plan: Plan, asked: Asked, again: Again) -> list[Change]:
    """Apply what helps of each kind, one after the other, until it fits.

    More devices and a smaller batch are no help unless they are enough.
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
        if best is not None and kind not in (_devices, _smaller_batch):
            words.append(best.words)
            asked, plan = best.asked, best.plan
    return []


def _made(other: Asked, again: Again) -> Plan | None:
    """Return the plan, or None where the choices do not go together or JAX would refuse them."""
    try:
        made = again(other)
        return None if indivisible(made, other) else made
    except LabError:
        return None


def _stages(asked: Asked, plan: Plan) -> Iterator[tuple[str, Asked]]:
    """Cut states, gradients and parameters over batch axes; parameters over an unused one."""
    if asked.strategy is None:
        beside = "" if asked.rules.is_empty else " beside the rules"
        for name in ("zero1", "zero2") if asked.is_training else ():
            yield f"strategy {name}{beside}", replace(asked, strategy=name)
        return
    strategy = parse_strategy(asked.strategy)
    parts = [*strategy.parts]
    first = strategy.zero + 1 if asked.is_training else 3
    names = ["+".join([*parts, f"zero{stage}"]) for stage in range(first, 4)]
    if "tensor" in roles_of(asked.mesh) and "tensor" not in parts:
        zero = [f"zero{strategy.zero}"] if strategy.zero else []
        names.append("+".join([*parts, "tensor", *zero]))
    for name in names:
        yield f"strategy {name}", replace(asked, strategy=name)


def _cutting(asked: Asked, plan: Plan) -> Iterator[tuple[str, Asked]]:
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
            specs.append(PathSpec(row.path, Spec(*(None,) * axis, entry)))
            if len(specs) not in (1, 2, 4, 8) and row is not whole[-1]:
                continue  # each is a plan of its own
            rules = replace(asked.rules, specs=(*specs, *asked.rules.specs))
            more = f" and {len(specs) - 1} more" if len(specs) > 1 else ""
            told = f"cut '{specs[0].pattern}' as {specs[0].spec}{more}"
            yield told, replace(asked, rules=rules)


def _named(asked: Asked, plan: Plan) -> Iterator[tuple[str, Asked]]:
    """A strategy in place of rules: it prints those it stands for."""
    if asked.strategy is None:
        roles = roles_of(asked.mesh)
        parts = [part for part in ("expert", "tensor") if part in roles]
        for stage in ("fsdp", "zero3") if {"data", "fsdp"} & set(roles) else ():
            name = "+".join([*parts, stage])
            other = replace(asked, strategy=name, rules=Rules())
            yield f"strategy {name} in place of the rules", other


def _remat(asked: Asked, plan: Plan) -> Iterator[tuple[str, Asked]]:
    if (work := asked.workload) is None or not asked.is_training:
        return
    known = _REMAT.index(work.remat) if work.remat in _REMAT else 0
    for policy in _REMAT[known + 1 :]:
        yield f"remat {policy}", replace(asked, workload=replace(work, remat=policy))


def _microbatches(asked: Asked, plan: Plan) -> Iterator[tuple[str, Asked]]:
    """The largest part of the batch first: the smaller, the less a device has to do at once."""
    if (work := asked.workload) is None or not asked.is_training:
        return
    parts, now = shares_of(asked.mesh).batch.parts, work.microbatch or work.batch
    for n in range(2, min(work.batch // parts, 4096) + 1):
        size, left = divmod(work.batch, n)
        if not left and size < now and size % parts == 0:
            told = f"a microbatch of {size:,} ({n} parts of the batch, gradients added up)"
            yield told, replace(asked, workload=replace(work, microbatch=size))


def _precision(asked: Asked, plan: Plan) -> Iterator[tuple[str, Asked]]:
    if not asked.is_training:
        work = asked.workload
        if work is not None and work.cache_dtype.bits > 8:
            int8 = replace(work, cache_dtype=parse_dtype("int8"))
            yield "a cache in int8", replace(asked, workload=int8)
    elif asked.policy.moments is None or asked.policy.moments.bits > 16:
        policy = replace(asked.policy, moments=parse_dtype("bf16"))
        yield "moments in bf16", replace(asked, policy=policy)


def _devices(asked: Asked, plan: Plan) -> Iterator[tuple[str, Asked]]:
    """The fewest devices first; what one holds shrinks no faster than their number grows."""
    if asked.room is None:
        return
    roles, sizes = roles_of(asked.mesh), asked.mesh.shape
    order = [n for role in ("fsdp", "data", "expert", "tensor") for n in roles.get(role, ())]
    for times in _TIMES:
        if plan.bytes_per_device > times * asked.room.usable_bytes:
            continue
        for name in order:
            mesh = Mesh({**sizes, name: sizes[name] * times})
            told = f"{name}={mesh.shape[name]}, {mesh.n_devices:,} devices in place of "
            told += f"{asked.mesh.n_devices:,}"
            work = asked.workload and _work_on(mesh, asked.workload)
            if work and asked.workload and work.batch != asked.workload.batch:
                told += f", with a batch of {work.batch:,}"
            yield told, replace(asked, mesh=mesh, workload=work)


def _work_on(mesh: Mesh, work: Workload) -> Workload:
    """Return the workload with a batch, and a microbatch, for every part of the mesh."""
    parts = shares_of(mesh).batch.parts
    size = work.microbatch or work.batch
    size = -(-size // parts) * parts
    batch = -(-work.batch // size) * size
    return replace(work, batch=batch, microbatch=work.microbatch and size)


def _smaller_batch(asked: Asked, plan: Plan) -> Iterator[tuple[str, Asked]]:
    """In training a microbatch does the same and keeps the batch."""
    if (work := asked.workload) is None or asked.is_training:
        return
    parts = shares_of(asked.mesh).batch.parts
    each = work.batch // parts
    while each > 1:
        each = each - 1 if each <= _FINE else each * 3 // 4
        size = each * parts
        yield f"a batch of {size:,}", replace(asked, workload=replace(work, batch=size))


_KINDS = (_stages, _cutting, _named, _remat, _microbatches, _precision, _devices, _smaller_batch)
