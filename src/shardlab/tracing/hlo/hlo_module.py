"""HLO text as computations and instructions, each parsed on first use; dtypes and their sizes."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shardlab.tracing.hlo.stack_frames import StackFrameTables

_OPERAND = re.compile(r"%([\w.\-]+)(?:#(\d+))?")
_PARENTHESIS = re.compile(r"[()]")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) (?:\(.*\) -> .*)?\{$")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<= ]*)\]")


@dataclass(frozen=True)
class Array:
    """The dtype (XLA's name) and shape of one array."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Operand:
    """A value used by an instruction; `index` is that of a tuple element (`%param#3`)."""

    name: str
    index: int | None = None


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One line: `%name = type opcode(operand_text), attributes`."""

    name: str
    type: str
    opcode: str
    operand_text: str
    attributes: str

    @functools.cached_property
    def operands(self) -> tuple[Operand, ...]:
        # What is in their parentheses is a value or a number, not names of operands.
        if self.opcode in ("constant", "parameter"):
            return ()
        matches = _OPERAND.findall(self.operand_text)
        return tuple(Operand(name, int(index) if index else None) for name, index in matches)

    @functools.cached_property
    def arrays(self) -> tuple[Array, ...]:
        """Return the arrays of its type: one, or the elements of a tuple."""
        return parse_arrays(self.type)

    def attribute(self, name: str) -> str | None:
        """Return the value of `name=...` if it has no spaces, such as a computation's name."""
        match = re.search(rf"\b{name}=([^\s,]+)", self.attributes)
        return match[1].removeprefix("%") if match else None

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return the value of `name={1,0}` as numbers."""
        match = re.search(rf"\b{name}=\{{([\d,]*)\}}", self.attributes)
        return tuple(int(part) for part in match[1].split(",") if part) if match else ()


def parse_arrays(text: str) -> tuple[Array, ...]:
    """Return the arrays in a type.

    >>> parse_arrays("(s32[], bf16[4,16]{1,0:T(8,128)(2,1)})")
    (Array(dtype='s32', shape=()), Array(dtype='bf16', shape=(4, 16)))
    """
    return tuple(
        Array(dtype, tuple(int(size.strip(" <=")) for size in sizes.split(",") if size))
        for dtype, sizes in _ARRAY.findall(text)
    )


class Computation:
    """The instructions of one computation, by name and in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: list[str] = []

    @classmethod
    def from_instructions(
        cls, name: str, instructions: Iterable[Instruction], root: Instruction
    ) -> Computation:
        """Return a computation that was not read from text."""
        computation = cls(name)
        # They take the place of the cached properties, which would parse the lines.
        computation.__dict__["instructions"] = {
            instruction.name: instruction for instruction in instructions
        }
        computation.__dict__["root"] = root
        return computation

    @functools.cached_property
    def instructions(self) -> dict[str, Instruction]:
        return {instruction.name: instruction for instruction in map(parse_instruction, self.lines)}

    @functools.cached_property
    def root(self) -> Instruction:
        root_lines = [line for line in self.lines if line.startswith("ROOT ")]
        return parse_instruction(root_lines[0] if root_lines else self.lines[-1])

    def find_opcodes(self, opcodes: frozenset[str]) -> list[Instruction]:
        """Return the instructions with one of these opcodes, in order."""
        if self.lines:
            # Most computations have none: then no line is parsed.
            pattern = _opcode_pattern(opcodes)
            if not any(pattern.search(line) for line in self.lines):
                return []
        return [item for item in self.instructions.values() if item.opcode in opcodes]

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """Return the instructions that use each value."""
        users: dict[str, list[Instruction]] = {}
        for instruction in self.instructions.values():
            for name in dict.fromkeys(operand.name for operand in instruction.operands):
                users.setdefault(name, []).append(instruction)
        return users


@functools.cache
def _opcode_pattern(opcodes: frozenset[str]) -> re.Pattern[str]:
    return re.compile(rf" (?:{'|'.join(map(re.escape, sorted(opcodes)))})\(")


@dataclass(frozen=True, kw_only=True)
class Module:
    computations: dict[str, Computation]
    entry: str
    frames: StackFrameTables
    n_partitions: int

    def __iter__(self) -> Iterator[Computation]:
        return iter(self.computations.values())


def parse_module(lines: Iterable[str]) -> Module:
    """Return the module of a dump, read line by line: a dump may have hundreds of megabytes."""
    computations: dict[str, Computation] = {}
    frames = StackFrameTables()
    entry, header = "", ""
    current: Computation | None = None
    for line in lines:
        line = line.strip()
        if current is None:
            match = _COMPUTATION.match(line)
            if match:
                current = computations.setdefault(match[2], Computation(match[2]))
                entry = match[2] if match[1] else entry
            elif line.startswith("HloModule "):
                header = line
            else:
                frames.read_line(line)
        # A computation ends with a brace, in newer XLA followed by attributes.
        elif line == "}" or line.startswith("}, "):
            current = None
        elif line:
            current.lines.append(line)
    match = re.search(r"\bnum_partitions=(\d+)", header)
    return Module(
        computations=computations,
        entry=entry,
        frames=frames,
        n_partitions=int(match[1]) if match else 1,
    )


def parse_instruction(line: str) -> Instruction:
    """Return the instruction of one line.

    >>> add = parse_instruction("ROOT %a.1 = f32[2]{0} add(%x, %y#1), metadata={}")
    >>> add.opcode, add.operands[1], add.arrays[0].shape
    ('add', Operand(name='y', index=1), (2,))
    """
    name, _, right = line.removeprefix("ROOT ").partition(" = ")
    # A tuple type starts with a parenthesis and may contain spaces; an array type does not.
    end = _find_closing(right, 0) + 1 if right.startswith("(") else right.find(" ")
    opening = right.find("(", end)
    closing = _find_closing(right, opening)
    return Instruction(
        name=name.removeprefix("%"),
        type=right[:end],
        opcode=right[end:opening].strip(),
        operand_text=right[opening + 1 : closing],
        attributes=right[closing + 1 :],
    )


def _find_closing(text: str, start: int) -> int:
    """Return the position of the parenthesis that closes the one at `start`."""
    depth = 0
    for match in _PARENTHESIS.finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    return len(text)


_JAX_PREFIXES = {"s": "int", "u": "uint", "f": "float", "c": "complex"}
_SPECIAL_DTYPES = {"pred": ("bool", 8), "bf16": ("bfloat16", 16)}


def jax_dtype_name(xla_name: str) -> str:
    """Return JAX's name of a dtype.

    >>> [jax_dtype_name(name) for name in ("bf16", "s32", "f8e4m3fn", "pred")]
    ['bfloat16', 'int32', 'float8_e4m3fn', 'bool']
    """
    if xla_name in _SPECIAL_DTYPES:
        return _SPECIAL_DTYPES[xla_name][0]
    match = re.fullmatch(r"([sufc])(\d+)(e\w+)?", xla_name)
    if not match:
        return xla_name
    # f8e4m3fn is float8_e4m3fn: the exponent and mantissa follow an underscore in JAX.
    suffix = f"_{match[3]}" if match[3] else ""
    return f"{_JAX_PREFIXES[match[1]]}{match[2]}{suffix}"


def count_array_bytes(array: Array) -> int:
    """Return the bytes of an array; elements narrower than a byte are packed.

    >>> arrays = Array("bf16", (4, 8)), Array("s4", (3,)), Array("token", ())
    >>> [count_array_bytes(array) for array in arrays]
    [64, 2, 0]
    """
    return -(-math.prod(array.shape) * _bits_per_element(array.dtype) // 8)


def _bits_per_element(xla_name: str) -> int:
    if xla_name in _SPECIAL_DTYPES:
        return _SPECIAL_DTYPES[xla_name][1]
    match = re.fullmatch(r"[sufc](\d+)(?:e\w+)?", xla_name)
    return int(match[1]) if match else 0
