"""Sums over devices as accelerators do them: scattered where each keeps a part, merged where added.

XLA for CPU writes both the long way. It never writes reduce-scatter, but sums everything and
slices; and it adds up sums of the same devices, where TPUs and GPUs sum once what was added.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping

from shardlab.tracing.hlo.hlo_module import Array, Computation, Instruction
from shardlab.tracing.hlo.replica_groups import Groups
from shardlab.tracing.hlo.trip_counts import depends_on_device, on_device

# What neither adds nor drops an element.
_ARRANGEMENTS = frozenset({"bitcast", "convert", "copy", "reshape", "transpose"})
_SAME = frozenset({"bitcast", "copy"})


class Sums:
    """The all-reduces of one computation.

    `keys` says of each which others it may be merged with: those of an equal key; `groups` which
    devices it sums over.
    """

    def __init__(
        self,
        computation: Computation,
        keys: Mapping[str, Hashable],
        groups: Mapping[str, Groups],
    ) -> None:
        self._computation = computation
        self._groups = groups
        self._n_sums: dict[str, int] = {}
        self._merge(keys)

    def n_sums(self, name: str) -> int:
        """Return how many sums are counted as this one; 0 where it is counted as another."""
        return self._n_sums.get(name, 1)

    def kept(self, one: Instruction, number: int) -> Array | None:
        """Return the part of output `number` that each device keeps; None where it keeps all."""
        last = self._slice(one, number)
        return last.arrays[0] if last else None

    # -------------------------------------------------------------------------------- scattered

    def _slice(self, one: Instruction, number: int) -> Instruction | None:
        """Return the slice that is all that is used of a sum, if every device has its own."""
        groups = self._groups.get(one.name)
        last = self._part(one, number)
        while last is not None and (last is one or last.opcode != "dynamic-slice"):
            if last is not one and last.opcode not in (*_ARRANGEMENTS, "get-tuple-element"):
                return None
            last = self._only_user(last)
        if last is None or not groups:
            return None
        group, places = groups[0], last.operands[1:]
        operand = self._computation.instructions[one.operands[number].name]
        whole = operand.arrays[one.operands[number].index or 0]
        if _size(last.arrays[0]) * len(group) != _size(whole):
            return None
        if not depends_on_device(self._computation, places):
            return None
        offsets = [
            tuple(on_device(self._computation, place.name, device) for place in places)
            for device in group
        ]
        is_known = all(place is not None for offset in offsets for place in offset)
        # Sliced along another axis than it is summed over: all of it is needed.
        return None if is_known and len(set(offsets)) != len(group) else last

    def _part(self, one: Instruction, number: int) -> Instruction | None:
        """Return where output `number` goes on: the sum itself, or its part of a tuple."""
        if len(one.operands) == 1:
            return one
        users = self._computation.users.get(one.name, [])
        parts = [user for user in users if user.attribute("index") == str(number)]
        return parts[0] if len(parts) == 1 else None

    def _only_user(self, one: Instruction) -> Instruction | None:
        if one.name == self._computation.root.name:
            return None
        users = self._computation.users.get(one.name, [])
        return users[0] if len(users) == 1 else None

    # ----------------------------------------------------------------------------------- merged

    def _merge(self, keys: Mapping[str, Hashable]) -> None:
        """Count sums that are only added to each other as one, in the place of the last."""
        terms: dict[str, tuple[str, Hashable]] = {}  # value -> the sum it counts as, and its kind
        for name, key in keys.items():
            one = self._computation.instructions[name]
            last = self._slice(one, 0) or one
            terms[last.name] = name, (key, last.type, last is one)
        if len(terms) < 2:
            return
        for one in self._computation.instructions.values():
            names = [operand.name for operand in one.operands]
            known = [terms.get(name) for name in names]
            if one.opcode in _SAME and known[0] and self._is_only_use(names[0]):
                terms[one.name] = known[0]
            elif one.opcode == "add" and all(known) and all(map(self._is_only_use, names)):
                left, right = known
                if left and right and left != right and left[1] == right[1]:
                    self._n_sums[right[0]] = self.n_sums(left[0]) + self.n_sums(right[0])
                    self._n_sums[left[0]] = 0
                    terms[one.name] = right

    def _is_only_use(self, name: str) -> bool:
        return self._only_user(self._computation.instructions[name]) is not None


def _size(array: Array) -> int:
    return math.prod(array.shape)
