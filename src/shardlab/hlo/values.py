"""Whole numbers in a compiled program: constants, and what a device works out from its own id."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Sequence

from shardlab.hlo.module import Computation, Instruction, Operand

_SAME = frozenset({"bitcast", "convert", "copy", "reshape", "broadcast"})
_SUMS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "minimum": min,
    "maximum": max,
    "and": operator.and_,
    "shift-right-logical": operator.rshift,
    "shift-left": operator.lshift,
    "divide": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
}


def constant(instruction: Instruction) -> int | None:
    """Return the value of a scalar integer constant; None for anything else."""
    if instruction.opcode != "constant":
        return None
    return int(instruction.inside) if re.fullmatch(r"-?\d+", instruction.inside) else None


@functools.lru_cache(maxsize=4096)
def _table(text: str) -> tuple[int, ...] | None:
    """Return the numbers of a constant array; None where they are left out: `{...}`."""
    numbers = re.findall(r"-?\d+", text)
    return tuple(map(int, numbers)) if numbers and "." not in text else None


def on_device(computation: Computation, name: str, device: int) -> int | None:
    """Return the scalar `name` as `device` computes it; None where that is not known.

    Known is what the partitioner writes to find a device's own shard: tables that are looked up
    by `partition-id`, and sums.
    """
    one = computation.instructions.get(name)
    if one is None:
        return None
    if one.opcode == "partition-id":
        return device
    if one.opcode == "constant":
        return constant(one)
    inputs = [operand.name for operand in one.operands]
    if one.opcode == "dynamic-slice" and len(inputs) == 2:
        return _looked_up(computation, inputs, device)
    if one.opcode in _SAME and len(inputs) == 1:
        return on_device(computation, inputs[0], device)
    if one.opcode in _SUMS and len(inputs) == 2:
        left, right = (on_device(computation, each, device) for each in inputs)
        if left is None or right is None or (right == 0 and one.opcode in ("divide", "remainder")):
            return None
        return _SUMS[one.opcode](left, right)
    return None


def _looked_up(computation: Computation, inputs: Sequence[str], device: int) -> int | None:
    source = computation.instructions.get(inputs[0])
    place = on_device(computation, inputs[1], device)
    if source is None or source.opcode != "constant" or place is None:
        return None
    table = _table(source.inside)
    return table[min(max(place, 0), len(table) - 1)] if table else None


def depends_on_device(computation: Computation, operands: Sequence[Operand]) -> bool:
    """Say whether any of `operands` is worked out from the device's own id."""
    seen: set[str] = set()
    waiting = [operand.name for operand in operands]
    while waiting:
        name = waiting.pop()
        one = computation.instructions.get(name)
        if one is None or name in seen:
            continue
        seen.add(name)
        if one.opcode == "partition-id":
            return True
        # An array of data is no offset; following it would walk the whole program.
        if all(not array.shape or array.shape == (1,) for array in one.arrays):
            waiting += [operand.name for operand in one.operands]
    return False
