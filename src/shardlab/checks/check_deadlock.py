"""Do some devices wait in a collective that others never reach?

Do devices meet in different collectives, each taking the other's for its own?

Measured on 8 host devices. Calls meet by their kind of exchange and the devices that take part:
psum, pmax and pmin are one kind, and neither shape nor dtype counts. So a psum in one branch and
a pmax in the other end, with numbers that are neither. Where the kinds, the axes or the number of
calls differ nobody finds a partner, and all wait.

Where all branches call the same with the same shapes, what meets fits, and every device adds what
its own branch computed. If that is the same value too, the result is right; XLA does not promise
it, since each call has a channel of its own, so it is a warning.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from shardlab.checks.check_codes import as_argument, called, finding, named
from shardlab.checks.diverging_devices import Parting, partings
from shardlab.collectives.call import CollectiveCall
from shardlab.findings.finding import Finding
from shardlab.tracing.observation import Observation


def deadlocks(seen: Observation) -> list[Finding]:
    """Return a finding for each branch or loop that parts devices before a collective."""
    return [
        _found(parting)
        for parting in partings(seen)
        if not _is_harmless(parting) and not _all_communicate(parting)
    ]


def _is_harmless(parting: Parting) -> bool:
    """Say whether devices go the same way whatever they are given, or nobody calls anything."""
    nobody = not any(parting.calls.get(branch) for branch in parting.taken)
    return nobody or (parting.parts is False and parting.is_fixed)


def _all_communicate(parting: Parting) -> bool:
    """That is the other question: what happens when devices meet in different collectives."""
    return parting.scope.kind == "cond" and all(parting.calls.get(b) for b in parting.taken)


def _found(parting: Parting) -> Finding:
    call, scope = parting.first, parting.scope
    found = finding(
        "hazard.deadlock",
        _what(parting),
        call.source,
        _fix(parting),
        shows=(*_shows(parting),),
        details={
            "op": call.op,
            "mesh_axes": list(call.mesh_axes),
            "varies": list(scope.varies),
            "predicate": scope.predicate.to_json() if scope.predicate else None,
            "outcomes": list(parting.outcomes) if parting.outcomes else None,
        },
    )
    return found if parting.parts is not False else _only_with_other_values(found)


def _what(parting: Parting) -> str:
    """Say what happens, and only that it may where nobody knows the values."""
    it, varies, is_sure = called(parting.first), named(parting.scope.varies), parting.parts
    if parting.scope.kind == "while":
        return (
            f"Devices {'' if is_sure else 'may '}turn a loop a different number of times, and the "
            f"{it} in it waits for those that have left: its condition varies over {varies}."
        )
    reach = f"Not all devices reach the {it}" if is_sure else f"Some devices may not reach the {it}"
    return (
        f"{reach}: the choice of its branch varies over {varies}. Those that call it wait for ever "
        "for those that do not."
    )


def _only_with_other_values(found: Finding) -> Finding:
    """With the arguments given nobody hangs, and nothing says that the next ones are like them."""
    note = "with the arguments given all devices go the same way; with others they may not"
    return dataclasses.replace(found, severity="warning", shows=(*found.shows, note))


def _shows(parting: Parting) -> list[str]:
    scope = parting.scope
    lines = [f"the choice: {scope.predicate or scope.source}", parting.ways()]
    if scope.kind == "cond":
        callers = [branch for branch in parting.taken if parting.calls.get(branch)]
        told = ", ".join(map(scope.branch_name, callers))
        lines.append(f"only {told} call{'s' * (len(callers) == 1)} it")
    if set(parting.first.mesh_axes).isdisjoint(scope.varies):
        lines.append(f"a {parting.first.op} waits for all devices, not only those along its axes")
    others = [c for calls in parting.calls.values() for c in calls][1:]
    if others:
        lines.append(f"the same holds for {len(others)} more in it: {_listed(others)}")
    return lines


def _listed(calls: list[CollectiveCall]) -> str:
    told = dict.fromkeys(f"{call.op} at line {call.source.line}" for call in calls)
    return ", ".join(list(told)[:3]) + (" ..." if len(told) > 3 else "")


def _fix(parting: Parting) -> str:
    op, over = parting.first.op, as_argument(parting.scope.varies)
    if parting.scope.kind == "while":
        return (
            "let all devices go on until the last is done: make the condition the same everywhere "
            f"with lax.pmax(unfinished, {over}), or use a fixed number of turns."
        )
    return (
        f"call {op} on every device and choose with jnp.where what goes into it, or what becomes "
        f"of its result; or make the choice the same everywhere: lax.pmax(predicate, {over})."
    )


# What a real device takes for the same kind of exchange.
_KIND = {"psum": "all-reduce", "pmax": "all-reduce", "pmin": "all-reduce"}


def mixed_collectives(seen: Observation) -> list[Finding]:
    """Return a finding for each branch in which every device calls something, but not the same."""
    return [_found_mixed_collectives(parting) for parting in partings(seen) if _is_mixed(parting)]


def _is_mixed(parting: Parting) -> bool:
    is_cond = parting.scope.kind == "cond" and len(parting.taken) > 1
    agree = parting.parts is False and parting.is_fixed
    return is_cond and not agree and all(parting.calls.get(b) for b in parting.taken)


def _found_mixed_collectives(parting: Parting) -> Finding:
    call, scope = parting.first, parting.scope
    branches = [list(parting.calls[b]) for b in parting.taken]
    ends, is_same = _ending(branches), parting.facts.get("alike", False)
    found = finding(
        "hazard.mismatched_collectives",
        "Devices take different branches, and each branch communicates: "
        + (_SAME if is_same else ends)
        + f" The choice varies over {named(scope.varies)}.",
        call.source,
        "communicate outside of the branches: choose what to send first, call the collective on "
        "every device, and choose what to do with its result afterwards (jnp.where).",
        cause="same_calls" if is_same else ("hangs" if ends is _HANGS else "garbage"),
        shows=(
            f"the choice: {scope.predicate or scope.source}",
            parting.ways(),
            *(f"{scope.branch_name(b)}: {_told(parting.calls[b])}" for b in parting.taken),
        ),
    )
    if is_same or parting.parts is False:
        return dataclasses.replace(found, severity="warning")
    return found


_SAME = (
    "the calls happen to be the same, so that they meet on host devices, but nothing promises it."
)
_HANGS = "the calls do not fit each other, and all devices wait for ever."
_GARBAGE = (
    "the calls are taken for one another, and the program ends with wrong numbers and no error."
)
_MIXES = (
    "the calls fit each other, so that values of different meaning are put together, without an "
    "error."
)


def _ending(branches: list[list[CollectiveCall]]) -> str:
    if not _equal([[_rendezvous(c) for c in calls] for calls in branches]):
        return _HANGS
    return _MIXES if _equal([[_signature(c) for c in calls] for calls in branches]) else _GARBAGE


def _equal(lists: list[list[Any]]) -> bool:
    return all(each == lists[0] for each in lists)


def _rendezvous(call: CollectiveCall) -> tuple[Any, ...]:
    """Return what makes two calls meet on real devices."""
    groups = str(call.details.get("groups"))
    return _KIND.get(call.op, call.op), frozenset(call.mesh_axes), groups, call.count


def _signature(call: CollectiveCall) -> tuple[Any, ...]:
    return *_rendezvous(call), call.op, call.mesh_axes, call.shape, call.dtype, str(call.details)


def _told(calls: Any) -> str:
    told = [f"{called(c)} of {c.dtype}{list(c.shape)} at line {c.source.line}" for c in calls]
    return ", then ".join(told[:3]) + (f" and {len(told) - 3} more" if len(told) > 3 else "")
