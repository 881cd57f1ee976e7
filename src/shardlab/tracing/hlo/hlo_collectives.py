"""Everything that the devices of a compiled program send each other, with how often.

Which values of a computation are the same value, written more than once.

The partitioner may gather or sum one value for the forward pass and again for the backward one. XLA
makes one of them; on a CPU only after it has dropped what told their channels apart.
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
from shardlab.tracing.hlo.reduction_merging import Sums
from shardlab.tracing.hlo.replica_groups import Groups, parse_groups, parse_pairs, spelled_groups
from shardlab.tracing.hlo.stack_frames import op_name
from shardlab.tracing.hlo.trip_counts import trip_count

# What may differ from one time to the next, and the barrier that keeps a recomputation apart.
_ALWAYS_NEW = frozenset(
    {"custom-call", "infeed", "opt-barrier", "outfeed", "parameter", "recv", "rng", "send"}
)
_CHANNEL = re.compile(r"\bchannel_id=\d+(?:, )?")


class Equal:
    """The first of all equal values, for each value of a computation.

    `kind` says of an exchange what it must share with an equal one, and None of anything else.
    """

    def __init__(
        self, computation: Computation, kind: Callable[[Instruction], Hashable | None]
    ) -> None:
        self._first: dict[str, str] = {}
        seen: dict[Hashable, str] = {}
        for one in computation.instructions.values():
            if one.opcode in _ALWAYS_NEW:
                continue
            key = one.opcode, one.type, self._operands(one), kind(one) or _attributes(one)
            first = seen.setdefault(key, one.name)
            if first != one.name:
                self._first[one.name] = first

    def is_repeated(self, name: str) -> bool:
        """Say whether the same value stands further up."""
        return name in self._first

    def _operands(self, one: Instruction) -> Hashable:
        if not one.operands:
            return one.inside
        return tuple((self._first.get(each.name, each.name), each.index) for each in one.operands)


def _attributes(one: Instruction) -> str:
    """Return what an instruction says beside its operands, but for where it comes from."""
    return _CHANNEL.sub("", one.rest.partition(", metadata=")[0])


# XLA's operation -> JAX's name of it, and the JAX primitives that are lowered to it.
_NAMES = {
    "all-reduce": ("psum", ("psum", "psum_invariant", "pmax", "pmin", "unreduced_psum")),
    "all-gather": ("all_gather", ("all_gather", "all_gather_invariant", "all_gather_reduced")),
    "reduce-scatter": ("psum_scatter", ("reduce_scatter", "unreduced_reduce_scatter")),
    "all-to-all": ("all_to_all", ("all_to_all",)),
    "ragged-all-to-all": ("all_to_all", ("ragged_all_to_all",)),
    "collective-permute": ("ppermute", ("ppermute",)),
    "collective-broadcast": ("pbroadcast", ("pbroadcast",)),
}
_REDUCTIONS = {"maximum": "pmax", "or": "pmax", "minimum": "pmin", "and": "pmin"}
_COLLECTIVE = "|".join(map(re.escape, _NAMES))
_CALLERS = ("while", "conditional", "call", "fusion", "async-start")
_HEARD = re.compile(rf" (?:(?:{_COLLECTIVE})(?:-start)?|{'|'.join(_CALLERS)})\(")
# A TPU writes an exchange that it overlaps with work once for each piece of the work.
_CHAIN = re.compile(r'\bchain_id="(\d+)"')


@dataclass(frozen=True, kw_only=True)
class HloCollective:
    """One collective of a compiled program.

    `groups` are of partitions, that is, of devices in the program's own order; a permutation has
    `pairs` instead. `is_inserted` tells the compiler's from those that the program calls itself.
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
    n_sums: int = 1  # how many sums of the text are counted as this one


IsTheirs = Callable[[SourceLocation], bool]


def hlo_collectives(module: Module, is_theirs: IsTheirs = lambda _: True) -> list[HloCollective]:
    """Return the exchanges of a module in the order of its text, loops multiplied.

    `is_theirs` says of a place whether it is in the person's own program.
    """
    return list(_Walk(module, is_theirs).of(module.computations[module.entry], (), 1))


class _Walk:
    def __init__(self, module: Module, is_theirs: IsTheirs) -> None:
        self._module = module
        self._is_theirs = is_theirs
        # Negative: a program's own scopes, which are counted upwards, may stand beside them.
        self._ids = itertools.count(-1, -1)
        self._groups: dict[str, Groups] = {}
        self._heard: dict[str, list[Instruction]] = {}
        self._chains: set[tuple[str, str | None]] = set()
        self._equal: dict[str, Equal] = {}
        self._merged: dict[str, Sums] = {}

    def of(
        self,
        computation: Computation,
        within: tuple[ControlScope, ...],
        count: int | None,
        caller: Instruction | None = None,
    ) -> Iterator[HloCollective]:
        """Yield what is exchanged in a computation; `caller` is the fusion around it, if any."""
        merged = self._sums(computation)
        for one in self._loud(computation):
            if one.opcode == "while":
                yield from self._loop(computation, one, within, count)
            elif one.opcode == "conditional":
                yield from self._branches(one, within, count)
            elif one.opcode in _CALLERS:
                callee = one.attribute("calls") or one.attribute("to_apply") or ""
                yield from self.of(self._module.computations[callee], within, count, one)
            elif not self._is_repeated(computation, one) and merged.n_sums(one.name):
                for exchange in self._exchange(computation, one, caller):
                    n_sums = merged.n_sums(one.name)
                    yield replace(exchange, within=within, count=count, n_sums=n_sums)

    def _is_repeated(self, computation: Computation, one: Instruction) -> bool:
        """Say whether an exchange has been told already."""
        chain = _CHAIN.search(one.rest)
        if chain:
            key = (chain[1], one.attribute("channel_id"))
            is_told = key in self._chains
            self._chains.add(key)
            return is_told
        if computation.name not in self._equal:
            self._equal[computation.name] = Equal(computation, self._kind)
        return self._equal[computation.name].is_repeated(one.name)

    def _kind(self, one: Instruction) -> Hashable | None:
        """Return what equal exchanges of the compiler share; the program's own are all kept."""
        opcode = one.opcode.removesuffix("-start")
        if opcode not in _NAMES:
            return None
        if not _is_inserted(opcode, one):
            return one.name
        groups = parse_pairs(one.rest) or self._grouped(opcode, one)
        return groups, self._op(opcode, one), one.numbers("dimensions")

    def _sums(self, computation: Computation) -> Sums:
        """Return which sums of a computation are merged; asked once for each."""
        if computation.name not in self._merged:
            sums = [
                one
                for one in self._loud(computation)
                if one.opcode == "all-reduce" and _is_inserted("all-reduce", one)
            ]
            keys = {
                one.name: (self._op("all-reduce", one)[0], one.type, spelled_groups(one.rest))
                for one in sums
                if len(one.operands) == 1
            }
            groups = {one.name: self._grouped("all-reduce", one) for one in sums}
            self._merged[computation.name] = Sums(computation, keys, groups)
        return self._merged[computation.name]

    def _loud(self, computation: Computation) -> list[Instruction]:
        """Return the instructions that exchange something or call somebody who may."""
        if computation.name not in self._heard:
            names = [
                line.removeprefix("ROOT ").partition(" = ")[0].removeprefix("%")
                for line in computation.lines
                if _HEARD.search(line)
            ]
            found = [computation.instructions[name] for name in names]
            words = {word for name in _NAMES for word in (name, f"{name}-start")} | set(_CALLERS)
            self._heard[computation.name] = [one for one in found if one.opcode in words]
        return self._heard[computation.name]

    def _loop(
        self,
        computation: Computation,
        loop: Instruction,
        within: tuple[ControlScope, ...],
        count: int | None,
    ) -> Iterator[HloCollective]:
        turns = trip_count(self._module, computation, loop)
        kind: Literal["scan", "while"] = "while" if turns is None else "scan"
        scope = ControlScope(kind=kind, source=self._source(loop), id=next(self._ids), length=turns)
        inner = (*within, scope)
        for key, times in (("condition", None if turns is None else turns + 1), ("body", turns)):
            callee = self._module.computations[loop.attribute(key) or ""]
            total = None if times is None or count is None else count * times
            yield from self.of(callee, inner, total)

    def _branches(
        self, one: Instruction, within: tuple[ControlScope, ...], count: int | None
    ) -> Iterator[HloCollective]:
        listed = re.search(r"branch_computations=\{([^}]*)\}", one.rest)
        if listed:
            names = [name.strip().removeprefix("%") for name in listed[1].split(",")]
        else:  # JAX's own order: what is done where the predicate is false comes first
            names = [one.attribute(f"{key}_computation") or "" for key in ("false", "true")]
        id, source = next(self._ids), self._source(one)
        for branch, name in enumerate(names):
            scope = ControlScope(
                kind="cond", source=source, id=id, branch=branch, n_branches=len(names)
            )
            yield from self.of(self._module.computations[name], (*within, scope), count)

    def _exchange(
        self, computation: Computation, one: Instruction, caller: Instruction | None
    ) -> Iterator[HloCollective]:
        opcode = one.opcode.removesuffix("-start")
        op, reduction = self._op(opcode, one)
        pairs = parse_pairs(one.rest)
        told = self._metadata(computation, one, opcode)
        if caller is not None and self._source(told) == UNKNOWN_LOCATION:
            told = caller
        whole = HloCollective(
            op=op,
            operand=Array("", ()),
            result=Array("", ()),
            groups=() if pairs else self._grouped(opcode, one),
            pairs=pairs,
            op_name=op_name(told.rest),
            source=self._source(told),
            is_inserted=_is_inserted(opcode, one),
            within=(),
            count=1,
            reduction=reduction,
        )
        if opcode == "all-to-all" and len(one.operands) > 1:
            yield self._of_blocks(whole, computation, one)
            return
        results = one.arrays[len(one.operands) :] if opcode != one.opcode else one.arrays
        for number, operand in enumerate(one.operands):
            given = computation.instructions[operand.name].arrays[operand.index or 0]
            result = results[number] if number < len(results) else given
            if number > 0:
                whole = self._of_operand(whole, computation.instructions[operand.name])
            kept = self._sums(computation).kept(one, number) if op == "psum" else None
            if kept is not None:
                yield replace(whole, op="psum_scatter", operand=given, result=kept)
            else:
                yield replace(whole, operand=given, result=result)

    def _of_blocks(
        self, whole: HloCollective, computation: Computation, one: Instruction
    ) -> HloCollective:
        """Return an all-to-all whose array comes cut, a block for each device: one exchange."""
        first = one.operands[0]
        block = computation.instructions[first.name].arrays[first.index or 0]
        cut = replace(block, shape=(len(one.operands), *block.shape))
        return replace(whole, operand=cut, result=cut)

    def _of_operand(self, whole: HloCollective, maker: Instruction) -> HloCollective:
        """Return one part of a combined exchange, which carries the metadata of its first part."""
        source = self._source(maker)
        if source == UNKNOWN_LOCATION:
            return whole
        return replace(whole, source=source, op_name=op_name(maker.rest))

    def _op(self, opcode: str, one: Instruction) -> tuple[str, str]:
        name = _NAMES[opcode][0]
        if opcode not in ("all-reduce", "reduce-scatter"):
            return name, ""
        how = self._module.computations[one.attribute("to_apply") or ""].root.opcode
        return (_REDUCTIONS.get(how, name) if opcode == "all-reduce" else name), how

    def _grouped(self, opcode: str, one: Instruction) -> Groups:
        """Return the groups as partitions: one replica, many partitions."""
        n_devices = self._module.n_partitions
        text = spelled_groups(one.rest) or "{}"
        is_across = "channel_id=" in one.rest
        if not is_across:
            return tuple((device,) for device in range(n_devices))  # replicas only: each alone
        is_by_id = "use_global_device_ids=true" in one.rest or opcode.endswith("all-to-all")
        if not is_by_id:
            return (tuple(range(n_devices)),)
        if text not in self._groups:
            self._groups[text] = parse_groups(text, n_devices)
        return self._groups[text]

    # ------------------------------------------------------------------------ whose line it is

    def _source(self, one: Instruction) -> SourceLocation:
        places = self._module.frames.places(one.rest)
        return next((place for place in places if self._is_theirs(place)), UNKNOWN_LOCATION)

    def _metadata(self, computation: Computation, one: Instruction, opcode: str) -> Instruction:
        """Return the instruction whose metadata says best why this one is there.

        A sum belongs to the operation that makes the partial values: its own metadata. An array
        that is moved is moved for whoever uses it; newer XLA names its origin instead.
        """
        if opcode in ("all-reduce", "reduce-scatter") and self._source(one) != UNKNOWN_LOCATION:
            return one
        user = one
        for _ in range(4):
            users = computation.users.get(user.name, [])
            if not users:
                break
            user = users[0]
            # The next exchange of a chain is not the reason either.
            if user.opcode not in _NAMES and self._source(user) != UNKNOWN_LOCATION:
                return user
        return one if self._source(one) != UNKNOWN_LOCATION else self._maker(computation, one)

    def _maker(self, computation: Computation, one: Instruction) -> Instruction:
        """Return whoever made what is exchanged, if that is known to come from a line."""
        maker = one
        for _ in range(4):
            if not maker.operands:
                break
            maker = computation.instructions[maker.operands[0].name]
            if self._source(maker) != UNKNOWN_LOCATION:
                return maker
        return one


def _is_inserted(opcode: str, one: Instruction) -> bool:
    """Say whether the compiler made this one: it marks its own, or names them by their kind."""
    if 'is_spmd_generated="true"' in one.rest:
        return True
    primitive = op_name(one.rest).rpartition("/")[2]
    return one.name.partition(".")[0] == opcode and primitive not in _NAMES[opcode][1]
