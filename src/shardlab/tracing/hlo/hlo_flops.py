"""FLOPs per device of a partitioned program: local shapes, times the lengths of its loops.

Counted as in `jaxpr_flops.py`: a matrix product is 2 M N K, an elementwise operation 1 per
element of its result, a reduction 1 per element of its operand; moves, casts and collectives are 0.
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
class HloFlops:
    """The count, and the number of loops of unknown length; one iteration of each counts."""

    module: Module
    n_unknown_loops: int = 0
    _flops_by_computation: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.count_computation(self.module.entry)

    def count_computation(self, name: str) -> int:
        """Return the FLOPs of one execution of a computation."""
        if name not in self._flops_by_computation:
            computation = self.module.computations[name]
            self._flops_by_computation[name] = sum(
                self._count_instruction(computation, instruction)
                for instruction in _live_instructions(computation)
            )
        return self._flops_by_computation[name]

    def _count_instruction(self, computation: Computation, instruction: Instruction) -> int:
        if instruction.opcode in _ELEMENTWISE:
            return _count_elements(instruction.arrays)
        if instruction.opcode == "dot":
            return _dot_flops(computation, instruction)
        if instruction.opcode == "convolution":
            return _convolution_flops(computation, instruction)
        if instruction.opcode in ("reduce", "reduce-window"):
            # The operands of a reduce are the inputs, then as many initial values.
            inputs = instruction.operands[: len(instruction.operands) // 2]
            return sum(_count_elements(_operand_arrays(computation, operand)) for operand in inputs)
        if instruction.opcode == "while":
            return self._count_loop(computation, instruction)
        if instruction.opcode == "conditional":
            return max(
                (self.count_computation(branch) for branch in _branch_names(instruction)), default=0
            )
        if instruction.opcode in ("call", "fusion"):
            callee = instruction.attribute("to_apply") or instruction.attribute("calls")
            return self.count_computation(callee) if callee in self.module.computations else 0
        return 0

    def _count_loop(self, computation: Computation, loop: Instruction) -> int:
        n_iterations = trip_count(self.module, computation, loop)
        # Counted for the note of the trace.
        self.n_unknown_loops += n_iterations is None
        body, condition = (
            self.count_computation(loop.attribute(name) or "") for name in ("body", "condition")
        )
        return (1 if n_iterations is None else n_iterations) * (body + condition)


def count_hlo_flops(module: Module) -> HloFlops:
    """Return the FLOPs per device of one execution of the program."""
    return HloFlops(module)


def _live_instructions(computation: Computation) -> list[Instruction]:
    """Return the instructions that the result depends on: the partitioner leaves dead code."""
    visited: dict[str, Instruction] = {}
    pending = [computation.root.name]
    while pending:
        instruction = computation.instructions.get(pending.pop())
        if instruction is not None and instruction.name not in visited:
            visited[instruction.name] = instruction
            pending += [operand.name for operand in instruction.operands]
    return list(visited.values())


def _operand_arrays(computation: Computation, operand: Operand) -> tuple[Array, ...]:
    instruction = computation.instructions.get(operand.name)
    if instruction is None:
        return ()
    return (
        instruction.arrays
        if operand.index is None
        else instruction.arrays[operand.index : operand.index + 1]
    )


def _count_elements(arrays: tuple[Array, ...]) -> int:
    return sum(math.prod(array.shape) for array in arrays)


def _dot_flops(computation: Computation, instruction: Instruction) -> int:
    (lhs, *_) = _operand_arrays(computation, instruction.operands[0]) or (Array("", ()),)
    contracted_size = math.prod(
        lhs.shape[dim] for dim in instruction.numbers("lhs_contracting_dims")
    )
    return 2 * _count_elements(instruction.arrays) * contracted_size


def _convolution_flops(computation: Computation, instruction: Instruction) -> int:
    """Count 2 per kernel element for each result element, without the output-feature dimension."""
    (kernel, *_) = _operand_arrays(computation, instruction.operands[1]) or (Array("", ()),)
    # dim_labels are input_kernel->output, such as bf01_oi01->bf01; `o` is the output feature.
    labels = re.search(r"dim_labels=\w+_(\w+)->", instruction.attributes)
    dim = labels[1].find("o") if labels else -1
    n_features = kernel.shape[dim] if 0 <= dim < len(kernel.shape) else 1
    return 2 * _count_elements(instruction.arrays) * math.prod(kernel.shape) // max(1, n_features)


def _branch_names(instruction: Instruction) -> list[str]:
    names = []
    for listed_names, name_alone in _BRANCHES.findall(instruction.attributes):
        names += (
            [name.strip().removeprefix("%") for name in listed_names.split(",")]
            if listed_names
            else [name_alone]
        )
    return names
