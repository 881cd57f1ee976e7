"""What devices send each other in a program: its own collectives, and those of the compiler.

The program's own are read from the program as it was given, before a CPU's compiler widens bf16,
merges sums or takes an all_to_all to pieces. What the compiled text has beyond them the compiler
has inserted; whose an exchange is is not asked of its name, which the program could choose.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp

from shardlab.cost.wire import wire_bytes
from shardlab.engine._jax.exported import Collective
from shardlab.hlo.dtypes import dtype_name
from shardlab.hlo.exchanges import Exchange, exchanges
from shardlab.hlo.module import parse_module


def calls_of(own: Sequence[Collective], text: str) -> list[dict[str, Any]]:
    """Return every call between at least two devices; `text` is the compiled program."""
    written = [each for each in own if each.group_size > 1]
    met = Counter[str]()
    for each in written:
        met[each.op] += each.count or 1
    inserted = list(_beyond(_collectives(exchanges(parse_module(text.splitlines()))), met))
    told = [_told(each, is_inserted=False) for each in written]
    return [*told, *(_told(each, is_inserted=True) for each in inserted)]


def _told(call: Collective, *, is_inserted: bool) -> dict[str, Any]:
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
    }


def _beyond(compiled: Iterable[Collective], met: Counter[str]) -> Iterator[Collective]:
    """Yield what is not one of the program's own: as many of each kind are left out as it has."""
    for each in compiled:
        count = each.count or 1
        known = min(count, met[each.op])
        met[each.op] -= known
        if count > known:
            left = None if each.count is None else count - known
            yield Collective(each.op, each.shape, each.dtype, left, each.group_size, each.pairs)


def _collectives(found: Sequence[Exchange]) -> Iterator[Collective]:
    """Yield the exchanges between devices, those that look like the program's own first."""
    for each in sorted(found, key=lambda exchange: exchange.is_inserted):
        size = max(map(len, each.groups), default=2)
        if size < 2 or (each.pairs and all(a == b for a, b in each.pairs)):
            continue
        pairs = tuple((source, target) for source, target in each.pairs)
        dtype = dtype_name(each.operand.dtype)
        yield Collective(each.op, each.operand.shape, dtype, each.count, size, pairs)
