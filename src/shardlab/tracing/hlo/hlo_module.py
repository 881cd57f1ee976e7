"""The text of an HLO module as computations and instructions, each read when it is asked for.

XLA's words for dtypes, in JAX's spelling, and their sizes.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shardlab.tracing.hlo.stack_frames import Frames

_OPERAND = re.compile(r"%([\w.\-]+)(?:#(\d+))?")
_PARENTHESIS = re.compile(r"[()]")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) (?:\(.*\) -> .*)?\{$")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<= ]*)\]")


@dataclass(frozen=True)
class Array:
    """The dtype (XLA's word) and shape of one array."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Operand:
    """A value used by an instruction; `index` picks one part of a tuple (`%param#3`)."""

    name: str
    index: int | None = None


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One line: `%name = type opcode(inside), rest`."""

    name: str
    type: str
    opcode: str
    inside: str
    rest: str

    @functools.cached_property
    def operands(self) -> tuple[Operand, ...]:
        if self.opcode in ("constant", "parameter"):
            return ()
        found = _OPERAND.findall(self.inside)
        return tuple(Operand(name, int(index) if index else None) for name, index in found)

    @functools.cached_property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of its type: one, or the parts of a tuple."""
        return arrays(self.type)

    def attribute(self, name: str) -> str | None:
        """Return the value of `name=...` where it is one word, such as a computation's name."""
        match = re.search(rf"\b{name}=([^\s,]+)", self.rest)
        return match[1].removeprefix("%") if match else None

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return the value of `name={1,0}` as numbers."""
        match = re.search(rf"\b{name}=\{{([\d,]*)\}}", self.rest)
        return tuple(int(part) for part in match[1].split(",") if part) if match else ()


def arrays(text: str) -> tuple[Array, ...]:
    """Return the arrays in a type.

    >>> arrays("(s32[], bf16[4,16]{1,0:T(8,128)(2,1)})")
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

    @functools.cached_property
    def instructions(self) -> dict[str, Instruction]:
        return {each.name: each for each in map(instruction, self.lines)}

    @functools.cached_property
    def root(self) -> Instruction:
        marked = [line for line in self.lines if line.startswith("ROOT ")]
        return instruction(marked[0] if marked else self.lines[-1])

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """Who uses each value."""
        users: dict[str, list[Instruction]] = {}
        for each in self.instructions.values():
            for name in dict.fromkeys(operand.name for operand in each.operands):
                users.setdefault(name, []).append(each)
        return users


@dataclass(frozen=True, kw_only=True)
class Module:
    computations: dict[str, Computation]
    entry: str
    frames: Frames
    n_partitions: int

    def __iter__(self) -> Iterator[Computation]:
        return iter(self.computations.values())


def parse_module(lines: Iterable[str]) -> Module:
    """Return the module that the lines of a dump describe; nothing of it is copied twice."""
    computations: dict[str, Computation] = {}
    frames = Frames()
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
                frames.read(line)
        elif line == "}" or line.startswith("}, "):
            current = None
        elif line:
            current.lines.append(line)
    found = re.search(r"\bnum_partitions=(\d+)", header)
    return Module(
        computations=computations,
        entry=entry,
        frames=frames,
        n_partitions=int(found[1]) if found else 1,
    )


def instruction(line: str) -> Instruction:
    """Return one line read.

    >>> one = instruction("ROOT %a.1 = f32[2]{0} add(%x, %y#1), metadata={op_name=\\"f/add\\"}")
    >>> one.opcode, one.operands[1], one.arrays[0].shape
    ('add', Operand(name='y', index=1), (2,))
    """
    name, _, right = line.removeprefix("ROOT ").partition(" = ")
    end = _closing(right, 0) + 1 if right.startswith("(") else right.find(" ")
    opening = right.find("(", end)
    closing = _closing(right, opening)
    return Instruction(
        name=name.removeprefix("%"),
        type=right[:end],
        opcode=right[end:opening].strip(),
        inside=right[opening + 1 : closing],
        rest=right[closing + 1 :],
    )


def _closing(text: str, start: int) -> int:
    """Return the place of the parenthesis that closes the one at `start`."""
    depth = 0
    for match in _PARENTHESIS.finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    return len(text)


_KINDS = {"s": "int", "u": "uint", "f": "float", "c": "complex"}
_OTHERS = {"pred": ("bool", 8), "bf16": ("bfloat16", 16)}


def jax_dtype_name(word: str) -> str:
    """Return JAX's name of a dtype.

    >>> jax_dtype_name("bf16"), jax_dtype_name("s32"), jax_dtype_name("f8e4m3fn"), jax_dtype_name("pred")
    ('bfloat16', 'int32', 'float8_e4m3fn', 'bool')
    """
    if word in _OTHERS:
        return _OTHERS[word][0]
    match = re.fullmatch(r"([sufc])(\d+)(e\w+)?", word)
    if not match:
        return word
    tail = f"_{match[3]}" if match[3] else ""
    return f"{_KINDS[match[1]]}{match[2]}{tail}"


def n_bytes(array: Array) -> int:
    """Return the bytes of an array; narrower than a byte are packed.

    >>> n_bytes(Array("bf16", (4, 8))), n_bytes(Array("s4", (3,))), n_bytes(Array("token", ()))
    (64, 2, 0)
    """
    return -(-math.prod(array.shape) * _bits(array.dtype) // 8)


def _bits(word: str) -> int:
    if word in _OTHERS:
        return _OTHERS[word][1]
    match = re.fullmatch(r"[sufc](\d+)(?:e\w+)?", word)
    return int(match[1]) if match else 0
