"""Do some devices wait in a collective that others never reach?"""

from __future__ import annotations

import dataclasses

from shardlab.checks.codes import finding
from shardlab.checks.partings import Parting, partings
from shardlab.checks.words import as_argument, called, named
from shardlab.records.collective import CollectiveCall
from shardlab.records.finding import Finding
from shardlab.records.observation import Observation


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
