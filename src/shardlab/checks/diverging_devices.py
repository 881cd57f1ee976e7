"""Branches and loops that devices may take differently, with the collectives in them.

A collective over mesh axes A under a choice that varies over V is in danger if A and V meet: those
that come wait for those that do not. A ppermute is in danger under any choice that varies, since
its rendezvous spans all devices (measured on host devices; see docs/findings).

Groups of devices in words, also on large meshes.

>>> who(("data",), (8,), [1, 0, 0, 0, 0, 0, 0, 0])
{1: 'data=0', 0: 'data=1..7'}
>>> who(("data", "model"), (2, 4), [0, 0, 1, 1, 0, 0, 1, 1])
{0: 'model=0,1', 1: 'model=2,3'}
>>> who(("data", "model"), (16, 32), [int(n == 77) for n in range(512)])
{0: 'the other 511 devices', 1: 'data=2 model=13'}
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardlab.collectives.call import CollectiveCall, ControlScope
from shardlab.tracing.observation import Observation

# Longer lists of single devices are cut off.
_MOST_LISTED = 4


def who(axes: Sequence[str], sizes: Sequence[int], outcomes: Sequence[int]) -> dict[int, str]:
    """Return the devices of each outcome in words, outcomes in order of appearance."""
    axes, sizes, outcomes = _only_what_matters(tuple(axes), tuple(sizes), tuple(outcomes))
    coordinates = list(itertools.product(*map(range, sizes)))
    groups: dict[int, list[tuple[int, ...]]] = {}
    for coordinate, outcome in zip(coordinates, outcomes, strict=True):
        groups.setdefault(outcome, []).append(coordinate)
    return {
        outcome: _told(axes, sizes, group, is_one_of=len(groups))
        for outcome, group in groups.items()
    }


def _only_what_matters(
    axes: tuple[str, ...], sizes: tuple[int, ...], outcomes: tuple[int, ...]
) -> tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]:
    """Leave out mesh axes along which the outcome never changes."""
    for n in reversed(range(len(axes))):
        after = math.prod(sizes[n + 1 :])
        step = after * sizes[n]
        rows = [outcomes[i : i + step] for i in range(0, len(outcomes), step)]
        if all(row[:after] * sizes[n] == row for row in rows):
            outcomes = tuple(x for row in rows for x in row[:after])
            axes, sizes = axes[:n] + axes[n + 1 :], sizes[:n] + sizes[n + 1 :]
    return axes, sizes, outcomes


def _told(
    axes: tuple[str, ...], sizes: tuple[int, ...], group: list[tuple[int, ...]], is_one_of: int
) -> str:
    if is_one_of == 1:
        return "all devices"
    places = [sorted(set(column)) for column in zip(*group, strict=True)]
    if math.prod(map(len, places)) == len(group):
        told = [
            f"{axis}={coordinate_ranges(place)}"
            for axis, size, place in zip(axes, sizes, places, strict=True)
            if len(place) < size or len(axes) == 1
        ]
        return " ".join(told)
    if is_one_of == 2 and len(group) * 2 > math.prod(sizes):
        return f"the other {len(group)} devices"
    listed = [
        " ".join(f"{a}={i}" for a, i in zip(axes, at, strict=True)) for at in group[:_MOST_LISTED]
    ]
    more = len(group) - len(listed)
    return "; ".join(listed) + (f" and {more} more" if more else "")


def coordinate_ranges(numbers: Collection[int]) -> str:
    """Return numbers as runs.

    >>> coordinate_ranges([0, 1, 2, 3, 7, 9, 10])
    '0..3,7,9,10'
    >>> coordinate_ranges(range(0, 512, 2))
    '0,2,4 .. 510'
    """
    ordered = sorted(numbers)
    parts: list[list[int]] = []
    for number in ordered:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    told = [
        f"{part[0]}..{part[-1]}" if len(part) > 2 else ",".join(map(str, part)) for part in parts
    ]
    steps = {b - a for a, b in itertools.pairwise(ordered)}
    if len(told) > 6 and len(steps) == 1:
        return f"{ordered[0]},{ordered[1]},{ordered[2]} .. {ordered[-1]}"
    return (
        ",".join(told) if len(told) <= 6 else ",".join(told[:5]) + f" ... ({len(ordered)} in all)"
    )


@dataclass(frozen=True, kw_only=True)
class Parting:
    """A cond or a while loop whose choice varies, and the calls in it that are in danger."""

    scope: ControlScope
    calls: Mapping[int, Sequence[CollectiveCall]]  # by branch; a loop's body is branch 1
    sizes: Mapping[str, int]
    facts: Mapping[str, Any]  # of the clue `ways`; empty where nobody looked at the values

    @property
    def first(self) -> CollectiveCall:
        """Return the call that a person is shown."""
        return next(call for calls in self.calls.values() for call in calls)

    @property
    def outcomes(self) -> tuple[int, ...] | None:
        return self.facts.get("outcomes")

    @property
    def taken(self) -> list[int]:
        """Return the branches that somebody may take: other arguments may choose other ones."""
        if self.outcomes is not None and self.is_fixed:
            return sorted(set(self.outcomes))
        return list(range(self.scope.n_branches or 2))

    @property
    def is_fixed(self) -> bool:
        """Say whether the choice rests on the devices' places alone, so that it is always so."""
        return self.facts.get("rests_on") == "mesh"

    @property
    def parts(self) -> bool | None:
        """Say whether devices that must meet go different ways; None where values are not known."""
        outcomes = self.outcomes
        if outcomes is None:
            return None
        calls = [call for branch in self.taken for call in self.calls.get(branch, ())]
        if any(self._comes_apart(call, outcomes) for call in calls):
            return True
        # One turn in which all agree says nothing about the next; a loop that ended does.
        is_one_of_many = self.scope.kind == "cond" and self.facts.get("turn")
        return None if is_one_of_many else False

    def _comes_apart(self, call: CollectiveCall, outcomes: Sequence[int]) -> bool:
        axes = self.facts["axes"]
        every = list(itertools.product(*(range(self.sizes[a]) for a in axes)))
        chosen = dict(zip(every, outcomes, strict=True))
        together: dict[Any, set[int]] = {}
        for at, choice in chosen.items():
            for meeting in self._meetings(call, dict(zip(axes, at, strict=True))):
                together.setdefault(meeting, set()).add(choice)
        return any(len(choices) > 1 for choices in together.values())

    def _meetings(self, call: CollectiveCall, at: Mapping[str, int]) -> list[Any]:
        """Return what tells apart the groups of devices in which a device takes part."""
        if call.op == "ppermute":
            return [()]
        rest = tuple((a, i) for a, i in at.items() if a not in call.mesh_axes)
        groups = call.details.get("groups")
        if groups is None or not set(call.mesh_axes) <= set(at):
            return [rest]
        number = 0
        for axis in call.mesh_axes:
            number = number * self.sizes[axis] + at[axis]
        return [(rest, n) for n, group in enumerate(groups) if number in group]

    def ways(self) -> str:
        """Say who goes which way, or on what that rests."""
        outcomes = self.outcomes
        if outcomes is None or len(set(outcomes)) == 1:
            return self._rests_on()
        sizes = [self.sizes[a] for a in self.facts["axes"]]
        groups = who(self.facts["axes"], sizes, outcomes)
        # The smaller group first: it is the one that somebody singled out.
        order = sorted(groups, key=lambda outcome: (outcomes.count(outcome), -outcome))
        if self.scope.kind == "while":
            turn = self.facts["turn"]
            after = f"after {turn - 1} turns " if turn != 2 else "after 1 turn "
            after = "before the first turn " if turn == 1 else after
            return (
                after
                + f"{_plural(groups[0], 'leaves', 'leave')} and {groups[1]} "
                + ("goes on" if _is_one(groups[1]) else "go on")
            )
        name = self.scope.branch_name
        told = "; ".join(f"{_plural(groups[n], 'takes', 'take')} {name(n)}" for n in order)
        return f"in the first turn {told}" if self.facts.get("turn") else told

    def _rests_on(self) -> str:
        names = ", ".join(f"'{path}'" for path in self.facts.get("arguments", ()))
        where = self.facts.get("rests_on", "")
        if where == "elsewhere":
            return "which devices go which way rests on what a callback answers"
        if where == "turns":
            rest = f", and on {names}" if names else ""
            return f"which devices go which way rests on what the loop around it carries{rest}"
        return f"which devices go which way rests on the values of {names or 'its operands'}"


def _is_one(devices: str) -> bool:
    return not any(mark in devices for mark in ("..", ",", ";", "other", "more"))


def _plural(devices: str, one: str, many: str) -> str:
    return f"{devices} {one if _is_one(devices) else many}"


def partings(seen: Observation) -> list[Parting]:
    """Return every branch and loop with calls in danger; the backward pass of one not again."""
    ways = {clue.facts["scope"]: clue.facts for clue in seen.clues if clue.kind == "ways"}
    scopes: dict[int, ControlScope] = {}
    calls: dict[int, dict[int, list[CollectiveCall]]] = {}
    for call in seen.calls:
        for scope in call.within:
            if scope.kind != "scan" and is_in_danger(call, scope):
                scopes.setdefault(scope.id, scope)
                branch = 1 if scope.branch is None else scope.branch
                calls.setdefault(scope.id, {}).setdefault(branch, []).append(call)
    found = [
        Parting(
            scope=scope,
            calls=calls[id],
            sizes=_sizes(ways.get(id, {}), seen),
            facts=ways.get(id, {}),
        )
        for id, scope in scopes.items()
    ]
    forward = {p.scope.source for p in found if p.first.phase == "forward"}
    return [p for p in found if p.first.phase == "forward" or p.scope.source not in forward]


def _sizes(facts: Mapping[str, Any], seen: Observation) -> dict[str, int]:
    """Return the sizes of the mesh; of one of several, as the clue has them."""
    return {
        **dict(seen.mesh),
        **dict(zip(facts.get("axes", ()), facts.get("sizes", ()), strict=False)),
    }


def is_in_danger(call: CollectiveCall, scope: ControlScope) -> bool:
    """Say whether a call needs devices that the choice may have sent elsewhere.

    >>> call = CollectiveCall("psum", ("data",), (3,), "float32", 12, 18, 1, "forward")
    >>> from shardlab.findings.source import UNKNOWN_LOCATION
    >>> is_in_danger(call, ControlScope("cond", NOWHERE, 0, varies=("model",)))
    False
    >>> is_in_danger(call, ControlScope("cond", NOWHERE, 0, varies=("data", "model")))
    True
    """
    if call.op == "ppermute":
        return bool(scope.varies)
    return not set(call.mesh_axes).isdisjoint(scope.varies)
