"""Every collective of a compiled program, with its count.

The partitioner may gather or reduce one value for the forward pass and again for the backward pass.
XLA merges these; on CPU only after it has dropped the channel ids, so `EqualValues` does it here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from shardlab.collectives.call import ControlScope
from shardlab.findings.source import UNKNOWN_LOCATION, SourceLocation
from shardlab.tracing.hlo.hlo_module import Array, Computation, Instruction, Module
from shardlab.tracing.hlo.reduction_merging import AllReduces
from shardlab.tracing.hlo.replica_groups import (
    Groups,
    find_replica_groups,
    parse_groups,
    parse_pairs,
)
from shardlab.tracing.hlo.stack_frames import parse_op_name
from shardlab.tracing.hlo.trip_counts import trip_count

# Not equal even if they look alike: values from outside, random numbers, and the barrier that
# separates a recomputation.
_NEVER_EQUAL = frozenset(
    {"custom-call", "infeed", "opt-barrier", "outfeed", "parameter", "recv", "rng", "send"}
)
_CHANNEL = re.compile(r"\bchannel_id=\d+(?:, )?")


class EqualValues:
    """Finds values of a computation that are computed more than once.

    `collective_key` returns what equal collectives must share, and None for other instructions.
    """

    def __init__(
        self, computation: Computation, collective_key: Callable[[Instruction], Hashable | None]
    ) -> None:
        self._first: dict[str, str] = {}
        first_by_key: dict[Hashable, str] = {}
        for instruction in computation.instructions.values():
            # They never get an entry, so what is computed from them differs too.
            if instruction.opcode in _NEVER_EQUAL:
                continue
            key = (
                instruction.opcode,
                instruction.type,
                self._operands(instruction),
                collective_key(instruction) or _comparable_attributes(instruction),
            )
            first = first_by_key.setdefault(key, instruction.name)
            if first != instruction.name:
                self._first[instruction.name] = first

    def is_repeated(self, name: str) -> bool:
        """Return whether an equal value is computed before."""
        return name in self._first

    def _operands(self, instruction: Instruction) -> Hashable:
        if not instruction.operands:
            return instruction.operand_text
        return tuple(
            (self._first.get(operand.name, operand.name), operand.index)
            for operand in instruction.operands
        )


def _comparable_attributes(instruction: Instruction) -> str:
    """Return the attributes of an instruction without channel id and metadata."""
    return _CHANNEL.sub("", instruction.attributes.partition(", metadata=")[0])


# HLO opcode -> the JAX function, and the JAX primitives that are lowered to it.
_JAX_NAMES = {
    "all-reduce": ("psum", ("psum", "psum_invariant", "pmax", "pmin", "unreduced_psum")),
    "all-gather": ("all_gather", ("all_gather", "all_gather_invariant", "all_gather_reduced")),
    "reduce-scatter": ("psum_scatter", ("reduce_scatter", "unreduced_reduce_scatter")),
    "all-to-all": ("all_to_all", ("all_to_all",)),
    "ragged-all-to-all": ("all_to_all", ("ragged_all_to_all",)),
    "collective-permute": ("ppermute", ("ppermute",)),
    "collective-broadcast": ("pbroadcast", ("pbroadcast",)),
}
_REDUCTIONS = {"maximum": "pmax", "or": "pmax", "minimum": "pmin", "and": "pmin"}
# A custom call may contain a computation, as those of composites do.
_CALL_OPCODES = ("while", "conditional", "call", "fusion", "async-start", "custom-call")
_RELEVANT_OPCODES = frozenset(
    {opcode for name in _JAX_NAMES for opcode in (name, f"{name}-start")} | set(_CALL_OPCODES)
)
# XLA for TPU repeats a collective for each chunk of the computation that it overlaps.
_CHAIN = re.compile(r'\bchain_id="(\d+)"')


@dataclass(frozen=True, kw_only=True)
class HloCollective:
    """One collective of a compiled program.

    `groups` are groups of partitions, that is, of devices in the program's order; a permutation has
    `pairs` instead. `is_inserted` is False for the collectives that the program calls itself.
    """

    op: str
    operand: Array
    result: Array
    groups: Groups
    pairs: Groups
    op_name: str
    source: SourceLocation
    is_inserted: bool
    within: tuple[ControlScope, ...]
    count: int | None
    reduction: str = ""
    n_sums: int = 1  # all-reduces of the text that are counted as this one


IsUserCode = Callable[[SourceLocation], bool]


def hlo_collectives(
    module: Module, is_user_code: IsUserCode = lambda _: True
) -> list[HloCollective]:
    """Return the collectives of a module in text order, with counts over all loops.

    `is_user_code` returns whether a source location is in the user's program.
    """
    return list(
        _CollectiveWalk(module, is_user_code).walk_computation(
            module.computations[module.entry], (), 1
        )
    )


class _CollectiveWalk:
    def __init__(self, module: Module, is_user_code: IsUserCode) -> None:
        self._module = module
        self._is_user_code = is_user_code
        # Negative: the ids of the program's own scopes count upwards, and both may be in one trace.
        self._ids = itertools.count(-1, -1)
        self._groups_by_text: dict[str, Groups] = {}
        self._relevant: dict[str, list[Instruction]] = {}
        self._chains: set[tuple[str, str | None]] = set()
        self._equal: dict[str, EqualValues] = {}
        self._all_reduces_by_computation: dict[str, AllReduces] = {}

    def walk_computation(
        self,
        computation: Computation,
        within: tuple[ControlScope, ...],
        count: int | None,
        caller: Instruction | None = None,
    ) -> Iterator[HloCollective]:
        """Yield the collectives of a computation; `caller` is the fusion around it, if any."""
        all_reduces = self._all_reduces(computation)
        for instruction in self._relevant_instructions(computation):
            if instruction.opcode == "while":
                yield from self._walk_loop(computation, instruction, within, count)
            elif instruction.opcode == "conditional":
                yield from self._walk_branches(instruction, within, count)
            elif instruction.opcode in _CALL_OPCODES:
                yield from self._walk_call(instruction, within, count)
            # A merged count of 0 means that the all-reduce is counted as another one.
            elif not self._is_repeated(computation, instruction) and all_reduces.merged_count(
                instruction.name
            ):
                for collective in self._read_collective(computation, instruction, caller):
                    n_sums = all_reduces.merged_count(instruction.name)
                    yield replace(collective, within=within, count=count, n_sums=n_sums)

    def _walk_call(
        self, call: Instruction, within: tuple[ControlScope, ...], count: int | None
    ) -> Iterator[HloCollective]:
        callee = call.attribute("calls") or call.attribute("to_apply")
        # A custom call calls no computation, as a rule; all others must.
        if callee is not None or call.opcode != "custom-call":
            computation = self._module.computations[callee or ""]
            yield from self.walk_computation(computation, within, count, call)

    def _is_repeated(self, computation: Computation, instruction: Instruction) -> bool:
        """Return whether a collective was counted already."""
        chain = _CHAIN.search(instruction.attributes)
        # Chunks of one overlapped collective share the chain id and the channel.
        if chain:
            key = (chain[1], instruction.attribute("channel_id"))
            is_counted = key in self._chains
            self._chains.add(key)
            return is_counted
        if computation.name not in self._equal:
            self._equal[computation.name] = EqualValues(computation, self._collective_key)
        return self._equal[computation.name].is_repeated(instruction.name)

    def _collective_key(self, instruction: Instruction) -> Hashable | None:
        """Return what equal inserted collectives share; the program's own are never merged."""
        opcode = instruction.opcode.removesuffix("-start")
        if opcode not in _JAX_NAMES:
            return None
        if not _is_inserted(opcode, instruction):
            return instruction.name
        # Two gathers of one value over different groups are different collectives.
        groups = parse_pairs(instruction.attributes) or self._partition_groups(opcode, instruction)
        return groups, self._jax_operation(opcode, instruction), instruction.numbers("dimensions")

    def _all_reduces(self, computation: Computation) -> AllReduces:
        """Return the all-reduces of a computation, analyzed once."""
        if computation.name not in self._all_reduces_by_computation:
            all_reduces = [
                instruction
                for instruction in self._relevant_instructions(computation)
                if instruction.opcode == "all-reduce" and _is_inserted("all-reduce", instruction)
            ]
            keys = {
                instruction.name: (
                    self._jax_operation("all-reduce", instruction)[0],
                    instruction.type,
                    find_replica_groups(instruction.attributes),
                )
                for instruction in all_reduces
                if len(instruction.operands) == 1
            }
            groups = {
                instruction.name: self._partition_groups("all-reduce", instruction)
                for instruction in all_reduces
            }
            self._all_reduces_by_computation[computation.name] = AllReduces(
                computation, keys, groups
            )
        return self._all_reduces_by_computation[computation.name]

    def _relevant_instructions(self, computation: Computation) -> list[Instruction]:
        """Return the collectives of a computation, and the calls that may contain some."""
        if computation.name not in self._relevant:
            self._relevant[computation.name] = computation.find_opcodes(_RELEVANT_OPCODES)
        return self._relevant[computation.name]

    def _walk_loop(
        self,
        computation: Computation,
        loop: Instruction,
        within: tuple[ControlScope, ...],
        count: int | None,
    ) -> Iterator[HloCollective]:
        # A loop of known length is shown as a scan, which it was in JAX.
        n_iterations = trip_count(self._module, computation, loop)
        kind: Literal["scan", "while"] = "while" if n_iterations is None else "scan"
        scope = ControlScope(
            kind=kind, source=self._user_location(loop), id=next(self._ids), length=n_iterations
        )
        scopes = (*within, scope)
        for key, n_runs in (
            ("condition", None if n_iterations is None else n_iterations + 1),
            ("body", n_iterations),
        ):
            # The condition runs once more than the body.
            callee = self._module.computations[loop.attribute(key) or ""]
            total = None if n_runs is None or count is None else count * n_runs
            yield from self.walk_computation(callee, scopes, total)

    def _walk_branches(
        self, conditional: Instruction, within: tuple[ControlScope, ...], count: int | None
    ) -> Iterator[HloCollective]:
        branch_list = re.search(r"branch_computations=\{([^}]*)\}", conditional.attributes)
        if branch_list:
            names = [name.strip().removeprefix("%") for name in branch_list[1].split(",")]
        else:  # in JAX's order: the false branch comes first
            names = [conditional.attribute(f"{key}_computation") or "" for key in ("false", "true")]
        scope_id, source = next(self._ids), self._user_location(conditional)
        for branch, name in enumerate(names):
            scope = ControlScope(
                kind="cond", source=source, id=scope_id, branch=branch, n_branches=len(names)
            )
            yield from self.walk_computation(
                self._module.computations[name], (*within, scope), count
            )

    def _read_collective(
        self, computation: Computation, instruction: Instruction, caller: Instruction | None
    ) -> Iterator[HloCollective]:
        opcode = instruction.opcode.removesuffix("-start")
        op, reduction = self._jax_operation(opcode, instruction)
        pairs = parse_pairs(instruction.attributes)
        described = self._reason_for(computation, instruction, opcode)
        if caller is not None and self._user_location(described) == UNKNOWN_LOCATION:
            described = caller
        collective = HloCollective(
            op=op,
            operand=Array("", ()),
            result=Array("", ()),
            groups=() if pairs else self._partition_groups(opcode, instruction),
            pairs=pairs,
            op_name=parse_op_name(described.attributes),
            source=self._user_location(described),
            is_inserted=_is_inserted(opcode, instruction),
            within=(),
            count=1,
            reduction=reduction,
        )
        # XLA splits the array of an all-to-all into one operand per device.
        if opcode == "all-to-all" and len(instruction.operands) > 1:
            yield self._join_blocks(collective, computation, instruction)
            return
        # The type of an async start is a tuple of operands and results.
        results = (
            instruction.arrays[len(instruction.operands) :]
            if opcode != instruction.opcode
            else instruction.arrays
        )
        for number, operand in enumerate(instruction.operands):
            operand_array = computation.instructions[operand.name].arrays[operand.index or 0]
            result = results[number] if number < len(results) else operand_array
            if number > 0:
                collective = self._with_source_of(
                    collective, computation.instructions[operand.name]
                )
            shard = (
                self._all_reduces(computation).scattered_shard(instruction, number)
                if op == "psum"
                else None
            )
            if shard is not None:
                yield replace(collective, op="psum_scatter", operand=operand_array, result=shard)
            else:
                yield replace(collective, operand=operand_array, result=result)

    def _join_blocks(
        self, collective: HloCollective, computation: Computation, instruction: Instruction
    ) -> HloCollective:
        """Return an all-to-all with one operand per device as one collective."""
        # All blocks have the same shape: one per device, stacked.
        first = instruction.operands[0]
        block = computation.instructions[first.name].arrays[first.index or 0]
        stacked = replace(block, shape=(len(instruction.operands), *block.shape))
        return replace(collective, operand=stacked, result=stacked)

    def _with_source_of(self, collective: HloCollective, producer: Instruction) -> HloCollective:
        """Return one operand of a combined collective, with the source of that operand.

        A combined collective has the metadata of its first operand only.
        """
        source = self._user_location(producer)
        if source == UNKNOWN_LOCATION:
            return collective
        return replace(collective, source=source, op_name=parse_op_name(producer.attributes))

    def _jax_operation(self, opcode: str, instruction: Instruction) -> tuple[str, str]:
        name = _JAX_NAMES[opcode][0]
        if opcode not in ("all-reduce", "reduce-scatter"):
            return name, ""
        reduction = self._module.computations[instruction.attribute("to_apply") or ""].root.opcode
        return (_REDUCTIONS.get(reduction, name) if opcode == "all-reduce" else name), reduction

    def _partition_groups(self, opcode: str, instruction: Instruction) -> Groups:
        """Return the groups as partitions: JAX compiles one replica with many partitions."""
        n_devices = self._module.n_partitions
        text = find_replica_groups(instruction.attributes) or "{}"
        is_across_partitions = "channel_id=" in instruction.attributes
        # Without a channel id a collective is across replicas, and JAX compiles a single replica.
        if not is_across_partitions:
            return tuple(
                (device,) for device in range(n_devices)
            )  # across replicas, of which there is one
        # Without global device ids the groups are of replicas: all partitions of one take part.
        has_device_ids = "use_global_device_ids=true" in instruction.attributes or opcode.endswith(
            "all-to-all"
        )
        if not has_device_ids:
            return (tuple(range(n_devices)),)
        if text not in self._groups_by_text:
            self._groups_by_text[text] = parse_groups(text, n_devices)
        return self._groups_by_text[text]

    # ------------------------------------------------------------------------ source lines

    def _user_location(self, instruction: Instruction) -> SourceLocation:
        locations = self._module.frames.source_locations(instruction.attributes)
        return next(
            (location for location in locations if self._is_user_code(location)), UNKNOWN_LOCATION
        )

    def _reason_for(
        self, computation: Computation, instruction: Instruction, opcode: str
    ) -> Instruction:
        """Return the instruction whose metadata best explains why a collective is there.

        A sum belongs to the operation that computes the partial sums: its own metadata. Other
        collectives move an array for the operation that uses it; newer XLA names the one that
        produced it instead.
        """
        if (
            opcode in ("all-reduce", "reduce-scatter")
            and self._user_location(instruction) != UNKNOWN_LOCATION
        ):
            return instruction
        # Casts and copies without metadata may be in between; four steps are enough in practice.
        user = instruction
        for _ in range(4):
            users = computation.users.get(user.name, [])
            if not users:
                break
            user = users[0]
            # The next collective of a chain is not the reason either.
            if user.opcode not in _JAX_NAMES and self._user_location(user) != UNKNOWN_LOCATION:
                return user
        return (
            instruction
            if self._user_location(instruction) != UNKNOWN_LOCATION
            else self._find_producer(computation, instruction)
        )

    def _find_producer(self, computation: Computation, instruction: Instruction) -> Instruction:
        """Return the instruction that computed the operand, if it has a source line."""
        producer = instruction
        for _ in range(4):
            if not producer.operands:
                break
            producer = computation.instructions[producer.operands[0].name]
            if self._user_location(producer) != UNKNOWN_LOCATION:
                return producer
        return instruction


def _is_inserted(opcode: str, instruction: Instruction) -> bool:
    """Return whether the compiler inserted this one: it marks them, or names them by opcode."""
    if 'is_spmd_generated="true"' in instruction.attributes:
        return True
    primitive = parse_op_name(instruction.attributes).rpartition("/")[2]
    return instruction.name.partition(".")[0] == opcode and primitive not in _JAX_NAMES[opcode][1]
