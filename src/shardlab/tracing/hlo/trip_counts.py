"""How often a loop of a compiled program turns.

Whole numbers in a compiled program: constants, and what a device works out from its own id.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Sequence

from shardlab.tracing.hlo.hlo_module import Computation, Instruction, Module, Operand

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


_KNOWN = re.compile(r'known_trip_count"?\s*[:=]\s*\{\s*"?n"?\s*[:=]\s*"?(\d+)')
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE", "EQ": "EQ"}


def trip_count(module: Module, around: Computation, loop: Instruction) -> int | None:
    """Return how often a `while` turns: as XLA notes it, or by its own counter; None if unknown.

    A scan counts from one constant to another by a constant: the condition compares a part of the
    loop's state with the end, and the body adds to it.
    """
    noted = _KNOWN.search(loop.rest)
    if noted:
        return int(noted[1])
    test = module.computations[loop.attribute("condition") or ""]
    if test.root.opcode != "compare" or len(test.root.operands) != 2:
        return None
    left, right = test.root.operands
    direction = test.root.attribute("direction") or ""
    state = _State(module, around, loop)
    if state.part(test, left) is None or state.fixed(test, left) is not None:
        left, right, direction = right, left, _MIRRORED.get(direction, "")
    counter, end = state.part(test, left), state.fixed(test, right)
    if counter is None or end is None:
        return None
    start, step = state.start(counter), state.step(counter)
    return None if start is None or step is None else _turns(start, end, step, direction)


def _turns(start: int, end: int, step: int, direction: str) -> int | None:
    """Return the turns of a counter.

    >>> _turns(0, 24, 1, "LT"), _turns(0, 10, 4, "LT"), _turns(5, 0, -1, "GE")
    (24, 3, 6)
    """
    if direction in ("LE", "GE"):
        end, direction = end + (1 if direction == "LE" else -1), direction[0] + "T"
    if direction == "NE":
        return (end - start) // step if step and (end - start) % step == 0 else None
    if (direction == "LT" and step > 0) or (direction == "GT" and step < 0):
        return max(0, math.ceil((end - start) / step))
    return None


class _State:
    """The parts of a loop's state: what they start as, and what a turn does to them."""

    def __init__(self, module: Module, around: Computation, loop: Instruction) -> None:
        self._around = around
        self._first = around.instructions.get(loop.operands[0].name)
        self._body = module.computations[loop.attribute("body") or ""]

    def part(self, inside: Computation, value: Operand) -> int | None:
        """Return which part of the state `value` is, in the condition or the body."""
        one = inside.instructions.get(value.name)
        while one is not None and one.opcode in ("copy", "bitcast"):
            value = one.operands[0]
            one = inside.instructions.get(value.name)
        if one is None:
            return None
        if one.opcode == "parameter":
            return value.index
        if one.opcode == "get-tuple-element":
            number = one.attribute("index")
            source = inside.instructions.get(one.operands[0].name)
            is_state = source is not None and source.opcode == "parameter"
            return int(number) if number and is_state else None
        return None

    def fixed(self, inside: Computation, value: Operand) -> int | None:
        """Return a constant, written there or carried along unchanged."""
        one = inside.instructions.get(value.name)
        if one is not None and one.opcode == "constant":
            return constant(one)
        number = self.part(inside, value)
        if number is None or self._next(number) is None:
            return None
        is_kept = self.part(self._body, self._next(number) or value) == number
        return self.start(number) if is_kept else None

    def start(self, number: int) -> int | None:
        if self._first is None or self._first.opcode != "tuple":
            return None
        one = self._around.instructions.get(self._first.operands[number].name)
        while one is not None and one.opcode in ("copy", "bitcast", "convert"):
            one = self._around.instructions.get(one.operands[0].name)
        return constant(one) if one is not None else None

    def step(self, number: int) -> int | None:
        """Return what one turn adds."""
        after = self._next(number)
        one = self._body.instructions.get(after.name) if after else None
        if one is None or one.opcode not in ("add", "subtract") or len(one.operands) != 2:
            return None
        left, right = one.operands
        if one.opcode == "add" and self.part(self._body, left) != number:
            left, right = right, left
        if self.part(self._body, left) != number:
            return None
        step = self.fixed(self._body, right)
        return -step if step is not None and one.opcode == "subtract" else step

    def _next(self, number: int) -> Operand | None:
        root = self._body.root
        is_tuple = root.opcode == "tuple" and number < len(root.operands)
        return root.operands[number] if is_tuple else None
