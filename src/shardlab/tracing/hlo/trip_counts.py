"""Trip counts of loops, and integers that a device computes from its own partition id."""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Sequence

from shardlab.tracing.hlo.hlo_module import Computation, Instruction, Module, Operand

_IDENTITY_OPS = frozenset({"bitcast", "convert", "copy", "reshape", "broadcast"})
_INTEGER_OPS: dict[str, Callable[[int, int], int]] = {
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


def constant_value(instruction: Instruction) -> int | None:
    """Return the value of a scalar integer constant; None for anything else."""
    if instruction.opcode != "constant":
        return None
    return (
        int(instruction.operand_text) if re.fullmatch(r"-?\d+", instruction.operand_text) else None
    )


# The same table of offsets is looked up once per device.
@functools.lru_cache(maxsize=4096)
def _constant_table(text: str) -> tuple[int, ...] | None:
    """Return the numbers of a constant array; None if XLA elided them: `{...}`."""
    numbers = re.findall(r"-?\d+", text)
    return tuple(map(int, numbers)) if numbers and "." not in text else None


def evaluate_on_device(computation: Computation, name: str, device: int) -> int | None:
    """Return the scalar `name` as `device` computes it, or None.

    Covers what the partitioner writes to find a device's own shard: lookups by `partition-id` in
    constant tables, and integer arithmetic.
    """
    instruction = computation.instructions.get(name)
    if instruction is None:
        return None
    if instruction.opcode == "partition-id":
        return device
    if instruction.opcode == "constant":
        return constant_value(instruction)
    inputs = [operand.name for operand in instruction.operands]
    if instruction.opcode == "dynamic-slice" and len(inputs) == 2:
        return _look_up(computation, inputs, device)
    if instruction.opcode in _IDENTITY_OPS and len(inputs) == 1:
        return evaluate_on_device(computation, inputs[0], device)
    if instruction.opcode in _INTEGER_OPS and len(inputs) == 2:
        lhs, rhs = (evaluate_on_device(computation, operand, device) for operand in inputs)
        if (
            lhs is None
            or rhs is None
            or (rhs == 0 and instruction.opcode in ("divide", "remainder"))
        ):
            return None
        return _INTEGER_OPS[instruction.opcode](lhs, rhs)
    return None


def _look_up(computation: Computation, inputs: Sequence[str], device: int) -> int | None:
    source = computation.instructions.get(inputs[0])
    index = evaluate_on_device(computation, inputs[1], device)
    if source is None or source.opcode != "constant" or index is None:
        return None
    table = _constant_table(source.operand_text)
    # dynamic-slice clamps its start index.
    return table[min(max(index, 0), len(table) - 1)] if table else None


def depends_on_device(computation: Computation, operands: Sequence[Operand]) -> bool:
    """Return whether any of `operands` is computed from the device's own id."""
    visited: set[str] = set()
    pending = [operand.name for operand in operands]
    while pending:
        name = pending.pop()
        instruction = computation.instructions.get(name)
        if instruction is None or name in visited:
            continue
        visited.add(name)
        if instruction.opcode == "partition-id":
            return True
        # An offset is a scalar; following arrays of data would walk the full program.
        if all(not array.shape or array.shape == (1,) for array in instruction.arrays):
            pending += [operand.name for operand in instruction.operands]
    return False


_KNOWN_TRIP_COUNT = re.compile(r'known_trip_count"?\s*[:=]\s*\{\s*"?n"?\s*[:=]\s*"?(\d+)')
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE", "EQ": "EQ"}


def trip_count(module: Module, caller: Computation, loop: Instruction) -> int | None:
    """Return the trip count of a `while`: annotated by XLA, or from its counter; else None.

    A scan counts from one constant to another by a constant: the condition compares an element of
    the loop state with the end, and the body adds to it.
    """
    # XLA annotates loops of known length in a later pass only, so there may be no annotation yet.
    match = _KNOWN_TRIP_COUNT.search(loop.attributes)
    if match:
        return int(match[1])
    condition = module.computations[loop.attribute("condition") or ""]
    if condition.root.opcode != "compare" or len(condition.root.operands) != 2:
        return None
    lhs, rhs = condition.root.operands
    direction = condition.root.attribute("direction") or ""
    state = _LoopState(module, caller, loop)
    # The counter may be on either side: `i < n` or `n > i`.
    if state.element_index(condition, lhs) is None or state.constant_of(condition, lhs) is not None:
        lhs, rhs, direction = rhs, lhs, _MIRRORED.get(direction, "")
    counter, end = state.element_index(condition, lhs), state.constant_of(condition, rhs)
    if counter is None or end is None:
        return None
    start, step = state.initial_value(counter), state.increment(counter)
    return None if start is None or step is None else _iteration_count(start, end, step, direction)


def _iteration_count(start: int, end: int, step: int, direction: str) -> int | None:
    """Return how many iterations a counter makes.

    >>> counters = (0, 24, 1, "LT"), (0, 10, 4, "LT"), (5, 0, -1, "GE")
    >>> [_iteration_count(*counter) for counter in counters]
    [24, 3, 6]
    """
    # i <= n is i < n + 1.
    if direction in ("LE", "GE"):
        end, direction = end + (1 if direction == "LE" else -1), direction[0] + "T"
    if direction == "NE":
        return (end - start) // step if step and (end - start) % step == 0 else None
    if (direction == "LT" and step > 0) or (direction == "GT" and step < 0):
        return max(0, math.ceil((end - start) / step))
    return None


class _LoopState:
    """The elements of a loop's state: their initial values, and what an iteration does to them."""

    def __init__(self, module: Module, caller: Computation, loop: Instruction) -> None:
        self._caller = caller
        self._initial = caller.instructions.get(loop.operands[0].name)
        self._body = module.computations[loop.attribute("body") or ""]

    def element_index(self, computation: Computation, value: Operand) -> int | None:
        """Return which element of the state `value` is, in the condition or the body."""
        instruction = computation.instructions.get(value.name)
        while instruction is not None and instruction.opcode in ("copy", "bitcast"):
            value = instruction.operands[0]
            instruction = computation.instructions.get(value.name)
        if instruction is None:
            return None
        if instruction.opcode == "parameter":
            return value.index
        if instruction.opcode == "get-tuple-element":
            number = instruction.attribute("index")
            source = computation.instructions.get(instruction.operands[0].name)
            is_state = source is not None and source.opcode == "parameter"
            return int(number) if number and is_state else None
        return None

    def constant_of(self, computation: Computation, value: Operand) -> int | None:
        """Return a constant: a literal, or an element of the state that never changes."""
        instruction = computation.instructions.get(value.name)
        if instruction is not None and instruction.opcode == "constant":
            return constant_value(instruction)
        number = self.element_index(computation, value)
        if number is None or self._next_value(number) is None:
            return None
        # Its next value is the element itself.
        is_unchanged = self.element_index(self._body, self._next_value(number) or value) == number
        return self.initial_value(number) if is_unchanged else None

    def initial_value(self, number: int) -> int | None:
        if self._initial is None or self._initial.opcode != "tuple":
            return None
        # The initial state is a tuple built by the caller; its elements may be copied or cast.
        instruction = self._caller.instructions.get(self._initial.operands[number].name)
        while instruction is not None and instruction.opcode in ("copy", "bitcast", "convert"):
            instruction = self._caller.instructions.get(instruction.operands[0].name)
        return constant_value(instruction) if instruction is not None else None

    def increment(self, number: int) -> int | None:
        """Return what one iteration adds."""
        result = self._next_value(number)
        instruction = self._body.instructions.get(result.name) if result else None
        if (
            instruction is None
            or instruction.opcode not in ("add", "subtract")
            or len(instruction.operands) != 2
        ):
            return None
        lhs, rhs = instruction.operands
        if instruction.opcode == "add" and self.element_index(self._body, lhs) != number:
            lhs, rhs = rhs, lhs
        if self.element_index(self._body, lhs) != number:
            return None
        step = self.constant_of(self._body, rhs)
        return -step if step is not None and instruction.opcode == "subtract" else step

    def _next_value(self, number: int) -> Operand | None:
        root = self._body.root
        is_tuple = root.opcode == "tuple" and number < len(root.operands)
        return root.operands[number] if is_tuple else None
