"""Branches and loops in which devices may diverge, with the collectives inside.

A collective over mesh axes A under a condition that varies over axes V can block if A and V share
an axis: the devices that arrive block until all others do. A ppermute can block under any
varying condition, because its rendezvous spans all devices (measured on host devices; see
docs/findings).

Groups of devices are described in a few words on meshes of any size:

>>> groups = group_devices(("data",), (8,), [1, 0, 0, 0, 0, 0, 0, 0])
>>> {outcome: group.text for outcome, group in groups.items()}
{1: 'data=0', 0: 'data=1..7'}
>>> groups = group_devices(("data", "model"), (16, 32), [int(n == 77) for n in range(512)])
>>> {outcome: group.text for outcome, group in groups.items()}
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

# Longer lists of single devices end with "and N more".
_MAX_LISTED = 4


# ------------------------------------------------------------------------------ groups of devices


@dataclass(frozen=True)
class DeviceGroup:
    """Devices with the same outcome, as text; `is_single` decides between `takes` and `take`."""

    text: str
    is_single: bool

    def with_verb(self, singular: str, plural: str) -> str:
        return f"{self.text} {singular if self.is_single else plural}"


def group_devices(
    axes: Sequence[str], sizes: Sequence[int], outcomes: Sequence[int]
) -> dict[int, DeviceGroup]:
    """Return the devices of each outcome, outcomes in order of appearance.

    >>> group_devices(("data", "model"), (2, 4), [0, 0, 1, 1, 0, 0, 1, 1])[0].text
    'model=0,1'
    """
    axes, sizes, outcomes = _drop_constant_axes(tuple(axes), tuple(sizes), tuple(outcomes))
    coordinates = itertools.product(*map(range, sizes))
    groups: dict[int, list[tuple[int, ...]]] = {}
    for coordinate, outcome in zip(coordinates, outcomes, strict=True):
        groups.setdefault(outcome, []).append(coordinate)
    return {
        outcome: _describe_group(axes, sizes, group, n_groups=len(groups))
        for outcome, group in groups.items()
    }


def _drop_constant_axes(
    axes: tuple[str, ...], sizes: tuple[int, ...], outcomes: tuple[int, ...]
) -> tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]:
    """Remove the mesh axes along which the outcome never changes."""
    for dim in reversed(range(len(axes))):
        # Outcomes are in row-major order: `stride` apart lie neighbours along this axis.
        stride = math.prod(sizes[dim + 1 :])
        step = stride * sizes[dim]
        rows = [outcomes[start : start + step] for start in range(0, len(outcomes), step)]
        if all(row[:stride] * sizes[dim] == row for row in rows):
            outcomes = tuple(outcome for row in rows for outcome in row[:stride])
            axes, sizes = axes[:dim] + axes[dim + 1 :], sizes[:dim] + sizes[dim + 1 :]
    return axes, sizes, outcomes


def _describe_group(
    axes: tuple[str, ...], sizes: tuple[int, ...], group: list[tuple[int, ...]], n_groups: int
) -> DeviceGroup:
    if n_groups == 1:
        return DeviceGroup("all devices", is_single=False)
    indices = [sorted(set(column)) for column in zip(*group, strict=True)]
    is_box = math.prod(map(len, indices)) == len(group)
    if is_box:
        # Axes along which the group has every index go without saying.
        restricted = [
            (axis, positions)
            for axis, size, positions in zip(axes, sizes, indices, strict=True)
            if len(positions) < size or len(axes) == 1
        ]
        text = " ".join(f"{axis}={coordinate_ranges(positions)}" for axis, positions in restricted)
        return DeviceGroup(text, all(len(positions) == 1 for _, positions in restricted))
    # No box of coordinates: the larger of two groups is "the others".
    if n_groups == 2 and len(group) * 2 > math.prod(sizes):
        return DeviceGroup(f"the other {len(group)} devices", is_single=False)
    devices = [
        " ".join(f"{axis}={index}" for axis, index in zip(axes, coordinate, strict=True))
        for coordinate in group[:_MAX_LISTED]
    ]
    n_more = len(group) - len(devices)
    return DeviceGroup(
        "; ".join(devices) + (f" and {n_more} more" if n_more else ""), is_single=False
    )


def coordinate_ranges(numbers: Collection[int]) -> str:
    """Return numbers as ranges.

    >>> coordinate_ranges([0, 1, 2, 3, 7, 9, 10])
    '0..3,7,9,10'
    >>> coordinate_ranges(range(0, 512, 2))
    '0,2,4 .. 510'
    """
    ordered = sorted(numbers)
    runs: list[list[int]] = []
    for number in ordered:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"{run[0]}..{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]
    if len(texts) <= 6:
        return ",".join(texts)
    # Every second or fourth device is a common pattern.
    steps = {after - before for before, after in itertools.pairwise(ordered)}
    if len(steps) == 1:
        return f"{ordered[0]},{ordered[1]},{ordered[2]} .. {ordered[-1]}"
    return ",".join(texts[:5]) + f" ... ({len(ordered)} total)"


# ------------------------------------------------------------------------ divergent control flow


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """A cond or a while loop whose condition varies, and the collectives in it that can block."""

    scope: ControlScope
    calls: Mapping[int, Sequence[CollectiveCall]]  # by branch; a loop's body is branch 1
    sizes: Mapping[str, int]
    facts: Mapping[str, Any]  # of the pattern `divergent_condition`; empty if values are unknown

    @property
    def first_call(self) -> CollectiveCall:
        """Return the call that a finding is about."""
        return next(call for calls in self.calls.values() for call in calls)

    @property
    def outcomes(self) -> tuple[int, ...] | None:
        return self.facts.get("outcomes")

    @property
    def possible_branches(self) -> list[int]:
        """Return the branches that some device may take, with these or other arguments."""
        # If only device indices decide, other arguments cannot lead to other branches.
        if self.outcomes is not None and self.depends_on_mesh_only:
            return sorted(set(self.outcomes))
        return list(range(self.scope.n_branches or 2))

    @property
    def depends_on_mesh_only(self) -> bool:
        """Return whether the condition depends on device indices alone, not on arguments."""
        return self.facts.get("depends_on") == "mesh"

    @property
    def diverges(self) -> bool | None:
        """Return whether devices of one collective diverge; None if values are unknown."""
        outcomes = self.outcomes
        if outcomes is None:
            return None
        calls = [call for branch in self.possible_branches for call in self.calls.get(branch, ())]
        if any(self._splits_group(call, outcomes) for call in calls):
            return True
        # That all devices agree in one iteration proves nothing about the next; a loop that ended
        # on all devices at once does.
        is_one_iteration = self.scope.kind == "cond" and self.facts.get("iteration")
        return None if is_one_iteration else False

    def _splits_group(self, call: CollectiveCall, outcomes: Sequence[int]) -> bool:
        """Return whether devices that take part in one collective have different outcomes."""
        axes = self.facts["axes"]
        coordinates = itertools.product(*(range(self.sizes[axis]) for axis in axes))
        outcomes_by_group: dict[Any, set[int]] = {}
        for coordinate, outcome in zip(coordinates, outcomes, strict=True):
            for group in self._groups_of_device(call, dict(zip(axes, coordinate, strict=True))):
                outcomes_by_group.setdefault(group, set()).add(outcome)
        return any(len(group) > 1 for group in outcomes_by_group.values())

    def _groups_of_device(self, call: CollectiveCall, device: Mapping[str, int]) -> list[Any]:
        """Return a key for each group of devices that this device joins in a collective."""
        if call.op == "ppermute":
            return [()]  # one group: its rendezvous spans all devices
        # Devices that differ only along the collective's own axes form one group.
        key = tuple((axis, i) for axis, i in device.items() if axis not in call.mesh_axes)
        groups = call.details.get("groups")
        if groups is None or not set(call.mesh_axes) <= set(device):
            return [key]
        # axis_index_groups number the devices along the axes in row-major order.
        index = 0
        for axis in call.mesh_axes:
            index = index * self.sizes[axis] + device[axis]
        return [(key, number) for number, group in enumerate(groups) if index in group]

    def outcome_text(self) -> str:
        """Return which devices take which branch, or what that depends on."""
        outcomes = self.outcomes
        if outcomes is None or len(set(outcomes)) == 1:
            return self._dependency_text()
        sizes = [self.sizes[axis] for axis in self.facts["axes"]]
        groups = group_devices(self.facts["axes"], sizes, outcomes)
        if self.scope.kind == "while":
            leaving, staying = groups[0], groups[1]
            return (
                f"{_iterations_text(self.facts['iteration'] - 1)} "
                f"{leaving.with_verb('leaves', 'leave')} the loop and "
                f"{staying.with_verb('continues', 'continue')}"
            )
        # The smaller group first: usually it is the one that the condition singles out.
        order = sorted(groups, key=lambda outcome: (outcomes.count(outcome), -outcome))
        branch_name = self.scope.branch_name
        text = "; ".join(
            f"{groups[branch].with_verb('takes', 'take')} {branch_name(branch)}" for branch in order
        )
        return f"in the first iteration {text}" if self.facts.get("iteration") else text

    def _dependency_text(self) -> str:
        names = ", ".join(f"'{path}'" for path in self.facts.get("arguments", ()))
        depends_on = self.facts.get("depends_on", "")
        if depends_on == "callback":
            source = "the result of a callback"
        elif depends_on == "carry":
            source = "the carry of the loop around it" + (f" and on {names}" if names else "")
        else:
            source = f"the values of {names or 'its operands'}"
        return f"which devices take which branch depends on {source}"


def _iterations_text(n_finished: int) -> str:
    if n_finished == 0:
        return "before the first iteration"
    return "after 1 iteration" if n_finished == 1 else f"after {n_finished} iterations"


def find_divergences(observation: Observation) -> list[Divergence]:
    """Return every branch and loop with collectives that can block."""
    facts_by_scope = {
        pattern.facts["scope"]: pattern.facts
        for pattern in observation.patterns_of("divergent_condition")
    }
    scopes: dict[int, ControlScope] = {}
    calls: dict[int, dict[int, list[CollectiveCall]]] = {}
    for call in observation.calls:
        for scope in call.within:
            if scope.kind != "scan" and can_block(call, scope):
                scopes.setdefault(scope.id, scope)
                branch = 1 if scope.branch is None else scope.branch
                calls.setdefault(scope.id, {}).setdefault(branch, []).append(call)
    divergences = []
    for scope_id, scope in scopes.items():
        facts = facts_by_scope.get(scope_id, {})
        # A program may have several meshes; the pattern has the sizes of the one it was found on.
        own_sizes = dict(zip(facts.get("axes", ()), facts.get("sizes", ()), strict=False))
        sizes = {**dict(observation.mesh), **own_sizes}
        divergences.append(Divergence(scope=scope, calls=calls[scope_id], sizes=sizes, facts=facts))
    # The backward pass of a cond or loop repeats it; it is reported once, for the forward pass.
    forward = {item.scope.source for item in divergences if item.first_call.phase == "forward"}
    return [
        item
        for item in divergences
        if item.first_call.phase == "forward" or item.scope.source not in forward
    ]


def can_block(call: CollectiveCall, scope: ControlScope) -> bool:
    """Return whether a call needs devices that may have taken another branch.

    >>> from shardlab.findings.source import UNKNOWN_LOCATION
    >>> call = CollectiveCall(op="psum", mesh_axes=("data",), shape=(3,), dtype="float32",
    ...                       payload_bytes=12, wire_bytes=18, count=1, phase="forward")
    >>> model = ControlScope(kind="cond", source=UNKNOWN_LOCATION, id=0, varies=("model",))
    >>> both = ControlScope(kind="cond", source=UNKNOWN_LOCATION, id=0, varies=("data", "model"))
    >>> can_block(call, model), can_block(call, both)
    (False, True)
    """
    if call.op == "ppermute":
        return bool(scope.varies)
    return not set(call.mesh_axes).isdisjoint(scope.varies)
