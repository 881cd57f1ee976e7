"""What devices communicate in a program: its own collectives, and those of the compiler.

The program's own are read from the program as it was exported, before the CPU compiler widens
bfloat16, merges reductions or splits an all_to_all. What the compiled module has beyond them, the
compiler has inserted. Names are not used to tell the two apart, because a program can choose them:
kind, group size, dtype and number of elements are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from shardlab._jax.exported_program import Collective
from shardlab.judge.protocol.run_result import CollectiveRecord
from shardlab.tracing.hlo.hlo_collectives import HloCollective, hlo_collectives
from shardlab.tracing.hlo.hlo_module import Module, jax_dtype_name
from shardlab.tracing.hlo.hlo_proto import InvalidModule, read_module_proto

_Kind = tuple[str, int, str]  # operation, group size, dtype
# The CPU backend has no reductions of these dtypes, so its compiler widens them.
_WIDENED_DTYPES = {
    **dict.fromkeys(("bfloat16", "float16"), "float32"),
    "int16": "int32",
    "uint16": "uint32",
}


def read_compiled_module(compiled: Any, n_devices: int) -> Module:
    """Return the module of a compiled program, from its serialized form: its text can be forged."""
    modules = compiled.runtime_executable().hlo_modules()
    if len(modules) != 1:
        raise InvalidModule(f"the program is compiled to {len(modules)} modules")
    return read_module_proto(modules[0].as_serialized_hlo_module_proto(), n_devices)


def find_collectives(
    program_calls: Sequence[Collective], compiled_module: Module
) -> list[CollectiveRecord]:
    """Return every collective between at least two devices of a program and its compiled module."""
    own_calls = [call for call in program_calls if call.group_size > 1]
    account = _ProgramAccount(own_calls)
    compiled = _compiled_collectives(hlo_collectives(compiled_module))
    # In this order: the account must have seen every compiled call before `is_compiled`.
    inserted = [rest for call in compiled for rest in account.subtract(call)]
    return [
        *(_record_call(call, is_folded=not account.is_compiled(call)) for call in own_calls),
        *(_record_call(call, is_inserted=True) for call in inserted),
    ]


def _record_call(
    call: Collective, *, is_inserted: bool = False, is_folded: bool = False
) -> CollectiveRecord:
    return CollectiveRecord(
        op=call.op,
        shape=tuple(call.shape),
        dtype=call.dtype,
        count=call.count,
        group_size=call.group_size,
        is_inserted=is_inserted,
        is_folded=is_folded,
    )


class _ProgramAccount:
    """How many compiled calls, of how many elements, the program's own calls explain.

    Elements and not bytes: the CPU compiler turns the two bytes of bfloat16 into four.
    """

    def __init__(self, program_calls: Sequence[Collective]) -> None:
        self._n_calls, self._n_elements = Counter[_Kind](), Counter[_Kind]()
        self._unbounded = {_call_kind(call) for call in program_calls if call.count is None}
        self._compiled_kinds: set[_Kind] = set()
        for call in program_calls:
            count = call.count or 1
            self._n_calls[_call_kind(call)] += count
            self._n_elements[_call_kind(call)] += count * math.prod(call.shape)

    def is_compiled(self, program_call: Collective) -> bool:
        """Return whether anything of a program's call is left in the compiled module."""
        return not program_call.count or _call_kind(program_call) in self._compiled_kinds

    def subtract(self, compiled: Collective) -> Iterator[Collective]:
        """Yield what of a compiled collective the program's own calls do not explain."""
        kind, count, size = _call_kind(compiled), compiled.count, math.prod(compiled.shape)
        if count is None and kind in self._unbounded:
            self._compiled_kinds.add(kind)
            return
        n_explained = min(count or 1, self._n_calls[kind])
        # As many calls as the elements allow: a small psum of the program must not hide a large
        # one that the compiler inserts.
        n_explained = min(n_explained, self._n_elements[kind] // size) if size else n_explained
        self._n_calls[kind] -= n_explained
        self._n_elements[kind] -= n_explained * size
        if n_explained:
            self._compiled_kinds.add(kind)
        if count is None or count > n_explained:
            yield replace(compiled, count=None if count is None else count - n_explained)


def _call_kind(call: Collective) -> _Kind:
    return call.op, call.group_size, _WIDENED_DTYPES.get(call.dtype, call.dtype)


def _compiled_collectives(collectives: Sequence[HloCollective]) -> Iterator[Collective]:
    """Yield the collectives between devices, those that look like the program's own first."""
    # XLA marks what it inserts by missing metadata. That is a hint only, so it decides the order
    # in which the program's calls are subtracted, and not the result.
    for collective in sorted(collectives, key=lambda collective: collective.is_inserted):
        size = max(map(len, collective.groups), default=2)
        is_local = all(source == target for source, target in collective.pairs)
        if size < 2 or (collective.pairs and is_local):
            continue
        yield Collective(
            op=collective.op,
            shape=collective.operand.shape,
            dtype=jax_dtype_name(collective.operand.dtype),
            count=collective.count,
            group_size=size,
            pairs=tuple((source, target) for source, target in collective.pairs),
        )
