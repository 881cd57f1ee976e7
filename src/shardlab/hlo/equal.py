"""Which values of a computation are the same value, written more than once.

The partitioner may gather or sum one value for the forward pass and again for the backward one. XLA
makes one of them; on a CPU only after it has dropped what told their channels apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable

from shardlab.hlo.module import Computation, Instruction

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
