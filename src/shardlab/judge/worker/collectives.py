"""What devices send each other in a program: its own collectives, and those of the compiler.

The program's own are read from the program as it was given, before a CPU's compiler widens bf16,
merges sums or takes an all_to_all to pieces. What the compiled text has beyond them the compiler
has inserted; whose an exchange is is not asked of its name, which the program could choose, but of
its kind, its group, its dtype and how many numbers it takes. What the compiler has folded away
stands for nothing else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from shardlab._jax.exported_program import Collective
from shardlab.collectives.wire import wire_bytes
from shardlab.tracing.hlo.hlo_collectives import HloCollective, hlo_collectives
from shardlab.tracing.hlo.hlo_module import jax_dtype_name, parse_module

_Kind = tuple[str, int, str]
# What a CPU cannot add up as it is, its compiler widens.
_WIDENED = {
    **dict.fromkeys(("bfloat16", "float16"), "float32"),
    "int16": "int32",
    "uint16": "uint32",
}


def calls_of(own: Sequence[Collective], text: str) -> list[dict[str, Any]]:
    """Return every call between at least two devices; `text` is the compiled program."""
    written = [each for each in own if each.group_size > 1]
    credit = _Credit(written)
    compiled = _collectives(hlo_collectives(parse_module(text.splitlines())))
    inserted = [left for each in compiled for left in credit.beyond(each)]
    told = [_told(each, is_inserted=False, is_folded=not credit.is_met(each)) for each in written]
    return [*told, *(_told(each, is_inserted=True) for each in inserted)]


def _told(call: Collective, *, is_inserted: bool, is_folded: bool = False) -> dict[str, Any]:
    payload = math.prod(call.shape) * jnp.dtype(call.dtype).itemsize
    return {
        "op": call.op,
        "shape": list(call.shape),
        "dtype": call.dtype,
        "count": call.count,
        "group_size": call.group_size,
        "payload_bytes": payload,
        "wire_bytes": wire_bytes(call.op, payload, call.group_size),
        "pairs": [list(pair) for pair in call.pairs],
        "is_inserted": is_inserted,
        "is_folded": is_folded,
    }


class _Credit:
    """What of a compiled program the written calls account for: so many calls, of so many numbers.

    Numbers, not bytes: a CPU's compiler makes four bytes of bfloat16's two.
    """

    def __init__(self, written: Sequence[Collective]) -> None:
        self._calls, self._numbers = Counter[_Kind](), Counter[_Kind]()
        self._endless = {_kind(each) for each in written if each.count is None}
        self._met: set[_Kind] = set()
        for each in written:
            count = each.count or 1
            self._calls[_kind(each)] += count
            self._numbers[_kind(each)] += count * math.prod(each.shape)

    def is_met(self, written: Collective) -> bool:
        """Say whether the compiled program has anything of what was written."""
        return not written.count or _kind(written) in self._met

    def beyond(self, compiled: Collective) -> Iterator[Collective]:
        """Yield what is not one of the program's own: as much is left out as it has."""
        kind, count, size = _kind(compiled), compiled.count, math.prod(compiled.shape)
        if count is None and kind in self._endless:
            self._met.add(kind)
            return
        known = min(count or 1, self._calls[kind])
        known = min(known, self._numbers[kind] // size) if size else known
        self._calls[kind] -= known
        self._numbers[kind] -= known * size
        if known:
            self._met.add(kind)
        if count is None or count > known:
            yield replace(compiled, count=None if count is None else count - known)


def _kind(call: Collective) -> _Kind:
    return call.op, call.group_size, _WIDENED.get(call.dtype, call.dtype)


def _collectives(found: Sequence[HloCollective]) -> Iterator[Collective]:
    """Yield the exchanges between devices, those that look like the program's own first."""
    for each in sorted(found, key=lambda exchange: exchange.is_inserted):
        size = max(map(len, each.groups), default=2)
        if size < 2 or (each.pairs and all(a == b for a, b in each.pairs)):
            continue
        pairs = tuple((source, target) for source, target in each.pairs)
        dtype = jax_dtype_name(each.operand.dtype)
        yield Collective(
            op=each.op,
            shape=each.operand.shape,
            dtype=dtype,
            count=each.count,
            group_size=size,
            pairs=pairs,
        )
