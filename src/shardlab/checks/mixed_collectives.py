"""Do devices meet in different collectives, each taking the other's for its own?

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

from shardlab.checks.codes import finding
from shardlab.checks.partings import Parting, partings
from shardlab.checks.words import called, named
from shardlab.records.collective import CollectiveCall
from shardlab.records.finding import Finding
from shardlab.records.observation import Observation

# What a real device takes for the same kind of exchange.
_KIND = {"psum": "all-reduce", "pmax": "all-reduce", "pmin": "all-reduce"}


def mixed_collectives(seen: Observation) -> list[Finding]:
    """Return a finding for each branch in which every device calls something, but not the same."""
    return [_found(parting) for parting in partings(seen) if _is_mixed(parting)]


def _is_mixed(parting: Parting) -> bool:
    is_cond = parting.scope.kind == "cond" and len(parting.taken) > 1
    agree = parting.parts is False and parting.is_fixed
    return is_cond and not agree and all(parting.calls.get(b) for b in parting.taken)


def _found(parting: Parting) -> Finding:
    call, scope = parting.first, parting.scope
    branches = [list(parting.calls[b]) for b in parting.taken]
    ends, is_same = _ending(branches), parting.facts.get("alike", False)
    found = finding(
        "hazard.mixed_collectives",
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
