"""All-reduces as accelerators run them: scattered if each device keeps a shard, merged if added.

XLA for CPU writes neither: it has no reduce-scatter but reduces everything and slices, and it adds
the results of all-reduces over the same devices, where TPUs and GPUs add first and reduce once.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping

from shardlab.tracing.hlo.hlo_module import Array, Computation, Instruction
from shardlab.tracing.hlo.replica_groups import Groups
from shardlab.tracing.hlo.trip_counts import depends_on_device, evaluate_on_device

# These neither add nor drop elements.
_LAYOUT_OPS = frozenset({"bitcast", "convert", "copy", "reshape", "transpose"})
_COPY_OPS = frozenset({"bitcast", "copy"})


class AllReduces:
    """The all-reduces of one computation.

    All-reduces with equal `keys` may be merged; `groups` are the devices that each sums over.
    """

    def __init__(
        self,
        computation: Computation,
        keys: Mapping[str, Hashable],
        groups: Mapping[str, Groups],
    ) -> None:
        self._computation = computation
        self._groups = groups
        self._merged_counts: dict[str, int] = {}
        self._merge_added(keys)

    def merged_count(self, name: str) -> int:
        """Return how many all-reduces are counted as this one; 0 if it is counted as another."""
        return self._merged_counts.get(name, 1)

    def scattered_shard(self, all_reduce: Instruction, number: int) -> Array | None:
        """Return the shard of output `number` that each device keeps; None if it keeps all."""
        value = self._find_shard_slice(all_reduce, number)
        return value.arrays[0] if value else None

    # -------------------------------------------------------------------------- reduce-scatter

    def _find_shard_slice(self, all_reduce: Instruction, number: int) -> Instruction | None:
        """Return the only slice that is used of a sum, if every device has a different one."""
        groups = self._groups.get(all_reduce.name)
        value = self._tuple_element(all_reduce, number)
        # Follow the only user until the slice; a second user needs the full sum.
        while value is not None and (value is all_reduce or value.opcode != "dynamic-slice"):
            if value is not all_reduce and value.opcode not in (*_LAYOUT_OPS, "get-tuple-element"):
                return None
            value = self._only_user(value)
        if value is None or not groups:
            return None
        # All groups look alike, so the offsets of one group are enough.
        group, start_indices = groups[0], value.operands[1:]
        operand = self._computation.instructions[all_reduce.operands[number].name]
        operand_array = operand.arrays[all_reduce.operands[number].index or 0]
        # A slice of another size than one shard is no reduce-scatter.
        if _element_count(value.arrays[0]) * len(group) != _element_count(operand_array):
            return None
        if not depends_on_device(self._computation, start_indices):
            return None
        offsets = [
            tuple(
                evaluate_on_device(self._computation, start.name, device) for start in start_indices
            )
            for device in group
        ]
        are_known = all(start is not None for offset in offsets for start in offset)
        # Equal offsets on two devices: the slice is over another mesh axis than the sum, so this
        # is no reduce-scatter.
        return None if are_known and len(set(offsets)) != len(group) else value

    def _tuple_element(self, all_reduce: Instruction, number: int) -> Instruction | None:
        """Return output `number`: the all-reduce itself, or its tuple element."""
        if len(all_reduce.operands) == 1:
            return all_reduce
        users = self._computation.users.get(all_reduce.name, [])
        # A combined all-reduce returns a tuple; each sum is one get-tuple-element of it.
        elements = [user for user in users if user.attribute("index") == str(number)]
        return elements[0] if len(elements) == 1 else None

    def _only_user(self, all_reduce: Instruction) -> Instruction | None:
        if all_reduce.name == self._computation.root.name:
            return None
        users = self._computation.users.get(all_reduce.name, [])
        return users[0] if len(users) == 1 else None

    # -------------------------------------------------------------------------- merged sums

    def _merge_added(self, keys: Mapping[str, Hashable]) -> None:
        """Count all-reduces that are only added to each other as one, the last of them."""
        terms: dict[
            str, tuple[str, Hashable]
        ] = {}  # value -> the all-reduce it counts as, and its key
        for name, key in keys.items():
            instruction = self._computation.instructions[name]
            value = self._find_shard_slice(instruction, 0) or instruction
            terms[value.name] = name, (key, value.type, value is instruction)
        if len(terms) < 2:
            return
        for instruction in self._computation.instructions.values():
            names = [operand.name for operand in instruction.operands]
            counted_as = [terms.get(name) for name in names]
            # A copy of a sum is the same sum.
            if instruction.opcode in _COPY_OPS and counted_as[0] and self._has_only_user(names[0]):
                terms[instruction.name] = counted_as[0]
            elif (
                instruction.opcode == "add"
                and all(counted_as)
                and all(map(self._has_only_user, names))
            ):
                first, second = counted_as
                if first and second and first != second and first[1] == second[1]:
                    # The later one counts: XLA reduces after the last addition.
                    self._merged_counts[second[0]] = self.merged_count(
                        first[0]
                    ) + self.merged_count(second[0])
                    self._merged_counts[first[0]] = 0
                    terms[instruction.name] = second

    def _has_only_user(self, name: str) -> bool:
        return self._only_user(self._computation.instructions[name]) is not None


def _element_count(array: Array) -> int:
    return math.prod(array.shape)
