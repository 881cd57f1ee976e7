"""Collectives that some devices never reach, and branches whose collectives do not match.

Measured on 8 host devices. Devices join a collective by its HLO kind and the devices that take
part: psum, pmax and pmin are all all-reduce, and neither shape nor dtype counts. So a psum in one
branch and a pmax in the other finish, with values that are neither. If the kinds, the mesh axes or
the number of calls differ, no device finds its partners, and all of them block.

If all branches make the same calls with the same shapes, every device contributes what its own
branch computed. If that is the same value too, the result is right; XLA does not guarantee it,
because each call has its own channel id, so it is a warning.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from shardlab.checks.check_codes import axes_argument, call_text, make_finding, quote_axes
from shardlab.checks.diverging_devices import Divergence, find_divergences
from shardlab.collectives.call import CollectiveCall
from shardlab.findings.finding import Finding
from shardlab.findings.source import written_name
from shardlab.tracing.observation import Observation


def find_deadlocks(observation: Observation) -> list[Finding]:
    """Return a finding for each branch or loop in which some devices may miss a collective."""
    return [
        _deadlock_finding(divergence)
        for divergence in find_divergences(observation)
        if not _is_harmless(divergence) and not _all_branches_communicate(divergence)
    ]


def _is_harmless(divergence: Divergence) -> bool:
    """Return whether no device calls a collective, or all devices choose alike on any input."""
    # Branches that only other arguments can reach count as well.
    is_silent = not any(divergence.calls.get(branch) for branch in divergence.possible_branches)
    return is_silent or (divergence.diverges is False and divergence.depends_on_mesh_only)


def _all_branches_communicate(divergence: Divergence) -> bool:
    """Such a cond is for `find_mismatched_collectives`."""
    return divergence.scope.kind == "cond" and all(
        divergence.calls.get(branch) for branch in divergence.possible_branches
    )


def _deadlock_finding(divergence: Divergence) -> Finding:
    call, scope = divergence.first_call, divergence.scope
    finding = make_finding(
        "hazard.deadlock",
        _deadlock_text(divergence),
        call.source,
        _deadlock_fix(divergence),
        shows=tuple(_deadlock_lines(divergence)),
        details={
            "op": call.op,
            "mesh_axes": list(call.mesh_axes),
            "varies": list(scope.varies),
            "predicate": scope.predicate.to_json() if scope.predicate else None,
            "outcomes": list(divergence.outcomes) if divergence.outcomes else None,
        },
    )
    if divergence.diverges is not False:
        return finding
    # The traced arguments do not deadlock, but other arguments may.
    note = "with these arguments all devices choose alike; other arguments may make them diverge"
    return dataclasses.replace(finding, severity="warning", shows=(*finding.shows, note))


def _deadlock_text(divergence: Divergence) -> str:
    """Return the sentence: what happens, or what may happen if the values are unknown."""
    call, varies = call_text(divergence.first_call), quote_axes(divergence.scope.varies)
    is_certain = divergence.diverges
    if divergence.scope.kind == "while":
        return (
            f"Devices {'' if is_certain else 'may '}run a different number of loop iterations: the "
            f"loop condition depends on values that vary over {varies}. The {call} in the loop "
            "then blocks forever, waiting for the devices that have left."
        )
    reach = "never" if is_certain else "may never"
    return (
        f"Some devices {reach} reach the {call}: the branch that calls it depends on values that "
        f"vary over {varies}. The devices that call it block forever."
    )


def _deadlock_lines(divergence: Divergence) -> list[str]:
    scope = divergence.scope
    lines = [f"the condition: {scope.predicate or scope.source}", divergence.outcome_text()]
    if scope.kind == "cond":
        branches = divergence.possible_branches
        callers = [branch for branch in branches if divergence.calls.get(branch)]
        names = ", ".join(map(scope.branch_name, callers))
        lines.append(f"only {names} call{'s' * (len(callers) == 1)} it")
    if set(divergence.first_call.mesh_axes).isdisjoint(scope.varies):
        # Only a ppermute is affected by a condition that does not vary over its own axes.
        op = divergence.first_call.op
        lines.append(f"a {op} waits for all devices, not only for those along its axes")
    further_calls = [call for calls in divergence.calls.values() for call in calls][1:]
    if further_calls:
        lines.append(f"the same applies to {len(further_calls)} more: {_list_calls(further_calls)}")
    return lines


def _list_calls(calls: list[CollectiveCall]) -> str:
    lines = dict.fromkeys(f"{call.op} at line {call.source.line}" for call in calls)
    return ", ".join(list(lines)[:3]) + (" ..." if len(lines) > 3 else "")


def _deadlock_fix(divergence: Divergence) -> str:
    call = divergence.first_call
    op, axes = written_name(call.op, call.source), axes_argument(divergence.scope.varies)
    if divergence.scope.kind == "while":
        return (
            "let all devices continue until the last one is done: make the condition the same on "
            f"all devices with lax.pmax(unfinished, {axes}), or use a fixed number of iterations."
        )
    return (
        f"call {op} on every device and select its input or its result with jnp.where; or make the "
        f"condition the same on all devices: lax.pmax(predicate, {axes})."
    )


# The HLO kind by which devices join a collective, where it is not the operation itself.
_HLO_KINDS = {"psum": "all-reduce", "pmax": "all-reduce", "pmin": "all-reduce"}


def find_mismatched_collectives(observation: Observation) -> list[Finding]:
    """Return a finding for each cond whose branches all communicate and devices may diverge."""
    divergences = find_divergences(observation)
    return [_mismatch_finding(item) for item in divergences if _is_mismatch(item)]


def _is_mismatch(divergence: Divergence) -> bool:
    has_choice = divergence.scope.kind == "cond" and len(divergence.possible_branches) > 1
    never_diverges = divergence.diverges is False and divergence.depends_on_mesh_only
    return has_choice and not never_diverges and _all_branches_communicate(divergence)


_SAME_CALLS = (
    "The calls are the same, so they match on host devices, but XLA does not guarantee it."
)
_HANGS = "The calls do not match, so all devices block forever."
_GARBAGE = "The calls are mistaken for one another: the program finishes with wrong values."
_MIXED_VALUES = "The calls match, so values with different meanings are combined without an error."


def _mismatch_finding(divergence: Divergence) -> Finding:
    scope, branches = divergence.scope, divergence.possible_branches
    # Value numbering of the branches has shown that the collectives get the same values.
    is_same = divergence.facts.get("is_same_call", False)
    outcome = _mismatch_outcome([list(divergence.calls[branch]) for branch in branches])
    finding = make_finding(
        "hazard.mismatched_collectives",
        "Devices take different branches, and each branch calls a collective. "
        f"{_SAME_CALLS if is_same else outcome} The condition varies over "
        f"{quote_axes(scope.varies)}.",
        divergence.first_call.source,
        "move the collective out of the branches: select its input first, call it on every device, "
        "and select what to do with its result afterwards (jnp.where).",
        cause="same_calls" if is_same else ("hangs" if outcome is _HANGS else "garbage"),
        shows=(
            f"the condition: {scope.predicate or scope.source}",
            divergence.outcome_text(),
            *(
                f"{scope.branch_name(branch)}: {_call_sequence_text(divergence.calls[branch])}"
                for branch in branches
            ),
        ),
    )
    if is_same or divergence.diverges is False:
        return dataclasses.replace(finding, severity="warning")
    return finding


def _mismatch_outcome(branches: list[list[CollectiveCall]]) -> str:
    if not _all_equal([[_rendezvous_key(call) for call in calls] for calls in branches]):
        return _HANGS
    if _all_equal([[_signature(call) for call in calls] for calls in branches]):
        return _MIXED_VALUES
    return _GARBAGE


def _all_equal(lists: list[list[Any]]) -> bool:
    return all(items == lists[0] for items in lists)


def _rendezvous_key(call: CollectiveCall) -> tuple[Any, ...]:
    """Return what two calls must share for devices to join them as one collective."""
    groups = str(call.details.get("groups"))
    # Shape and dtype are not part of it: XLA checks neither when devices join.
    return _HLO_KINDS.get(call.op, call.op), frozenset(call.mesh_axes), groups, call.count


def _signature(call: CollectiveCall) -> tuple[Any, ...]:
    key = _rendezvous_key(call)
    return *key, call.op, call.mesh_axes, call.shape, call.dtype, str(call.details)


def _call_sequence_text(calls: Any) -> str:
    texts = [
        f"{call_text(call)} of {call.dtype}{list(call.shape)} at line {call.source.line}"
        for call in calls
    ]
    return ", then ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")
