"""FLOPs of one device, from the text of a partitioned program: local shapes, loops multiplied.

Counted as the trace of a shard_map counts them (`engine/flops.py`): a product of matrices is
2 M N K, an elementwise operation 1 for each element of its result, a reduction 1 for each element
of its operand; moving, converting and communicating are 0.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from shardlab.tracing.hlo.hlo_module import Array, Computation, Instruction, Module, Operand
from shardlab.tracing.hlo.trip_counts import trip_count

_ELEMENTWISE = frozenset(
    [
        "abs",
        "add",
        "and",
        "atan2",
        "cbrt",
        "ceil",
        "clamp",
        "compare",
        "complex",
        "cosine",
        "count-leading-zeros",
        "divide",
        "erf",
        "exponential",
        "exponential-minus-one",
        "floor",
        "imag",
        "is-finite",
        "log",
        "log-plus-one",
        "logistic",
        "maximum",
        "minimum",
        "multiply",
        "negate",
        "not",
        "or",
        "popcnt",
        "power",
        "real",
        "remainder",
        "round-nearest-afz",
        "round-nearest-even",
        "rsqrt",
        "select",
        "shift-left",
        "shift-right-arithmetic",
        "shift-right-logical",
        "sign",
        "sine",
        "sqrt",
        "subtract",
        "tan",
        "tanh",
        "xor",
    ]
)
_BRANCHES = re.compile(
    r"(?:branch_computations=\{([^}]*)\}|(?:true|false)_computation=%?([\w.\-]+))"
)


@dataclass
class Flops:
    """The count, and how many loops in it turn an unknown number of times; each counts once."""

    module: Module
    n_unknown_loops: int = 0
    _known: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.of(self.module.entry)

    def of(self, name: str) -> int:
        """Return the FLOPs of one run of a computation."""
        if name not in self._known:
            computation = self.module.computations[name]
            self._known[name] = sum(self._one(computation, each) for each in _alive(computation))
        return self._known[name]

    def _one(self, around: Computation, one: Instruction) -> int:
        if one.opcode in _ELEMENTWISE:
            return _n_elements(one.arrays)
        if one.opcode == "dot":
            return _product(around, one)
        if one.opcode == "convolution":
            return _convolution(around, one)
        if one.opcode in ("reduce", "reduce-window"):
            half = one.operands[: len(one.operands) // 2]
            return sum(_n_elements(_arrays(around, operand)) for operand in half)
        if one.opcode == "while":
            return self._loop(around, one)
        if one.opcode == "conditional":
            return max((self.of(branch) for branch in _branches(one)), default=0)
        if one.opcode in ("call", "fusion"):
            called = one.attribute("to_apply") or one.attribute("calls")
            return self.of(called) if called in self.module.computations else 0
        return 0

    def _loop(self, around: Computation, loop: Instruction) -> int:
        turns = trip_count(self.module, around, loop)
        self.n_unknown_loops += turns is None
        body, condition = (self.of(loop.attribute(name) or "") for name in ("body", "condition"))
        return (1 if turns is None else turns) * (body + condition)


def flops(module: Module) -> Flops:
    """Return what one device computes in one run of the program."""
    return Flops(module)


def _alive(computation: Computation) -> list[Instruction]:
    """Return the instructions that the result rests on: the partitioner leaves dead ones behind."""
    seen: dict[str, Instruction] = {}
    waiting = [computation.root.name]
    while waiting:
        one = computation.instructions.get(waiting.pop())
        if one is not None and one.name not in seen:
            seen[one.name] = one
            waiting += [operand.name for operand in one.operands]
    return list(seen.values())


def _arrays(around: Computation, operand: Operand) -> tuple[Array, ...]:
    one = around.instructions.get(operand.name)
    if one is None:
        return ()
    return one.arrays if operand.index is None else one.arrays[operand.index : operand.index + 1]


def _n_elements(arrays: tuple[Array, ...]) -> int:
    return sum(math.prod(array.shape) for array in arrays)


def _product(around: Computation, one: Instruction) -> int:
    (left, *_) = _arrays(around, one.operands[0]) or (Array("", ()),)
    summed = math.prod(left.shape[axis] for axis in one.numbers("lhs_contracting_dims"))
    return 2 * _n_elements(one.arrays) * summed


def _convolution(around: Computation, one: Instruction) -> int:
    """Each element of the result sums over the kernel, all but its axis of output features."""
    (kernel, *_) = _arrays(around, one.operands[1]) or (Array("", ()),)
    labels = re.search(r"dim_labels=\w+_(\w+)->", one.rest)
    axis = labels[1].find("o") if labels else -1
    n_features = kernel.shape[axis] if 0 <= axis < len(kernel.shape) else 1
    return 2 * _n_elements(one.arrays) * math.prod(kernel.shape) // max(1, n_features)


def _branches(one: Instruction) -> list[str]:
    names = []
    for several, single in _BRANCHES.findall(one.rest):
        names += (
            [name.strip().removeprefix("%") for name in several.split(",")] if several else [single]
        )
    return names
