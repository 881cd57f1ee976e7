"""The collectives in the text of a compiled program, as plain data: a reader of its own.

It shares no code with shardlab, which it is there to check. A call is (kind, who, bytes): the HLO
operation and how it reduces, the groups of devices that exchange (or the pairs of a permutation),
and the bytes of the operand on one device. Calls in a loop count as often as it turns.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

KINDS = {
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "collective-permute",
    "all-to-all",
    "ragged-all-to-all",
}
N_DEVICES = 8

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"(?:ROOT )?%?[\w.\-]+ = (.+?) ([\w\-]+)\((.*)")
_ARRAY = re.compile(r"(pred|[a-z]+\d+(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
_CALLED = {
    "while": r"body=%?([\w.\-]+)",
    "call": r"to_apply=%?([\w.\-]+)",
    "fusion": r"calls=%?([\w.\-]+)",
}


def calls_in(text: str) -> Counter[tuple[str, frozenset[tuple[int, ...]], int]]:
    """Return how often each call is executed; every branch of a conditional counts."""
    entry, bodies = _computations(text)
    counts: Counter[tuple[str, frozenset[tuple[int, ...]], int]] = Counter()

    def visit(name: str, count: int) -> None:
        for shape, op, rest in _instructions(bodies[name]):
            kind = op.removesuffix("-start")
            if kind in KINDS:
                counts[_call(kind, shape, rest, bodies)] += count
            turns = re.search(r'known_trip_count"?:\{"n":"?(\d+)', rest) if op == "while" else None
            for inner in _inner(op, rest):
                visit(inner, count * (int(turns[1]) if turns else 1))

    visit(entry, 1)
    return counts


def _computations(text: str) -> tuple[str, dict[str, list[str]]]:
    bodies: dict[str, list[str]] = {}
    entry, name = "", ""
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            name = head[2]
            bodies[name] = []
            entry = name if head[1] else entry
        elif name and line.startswith(" "):
            bodies[name].append(line.strip())
    return entry, bodies


def _instructions(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    for line in lines:
        if match := _INSTRUCTION.match(line):
            yield match[1], match[2], match[3]


def _inner(op: str, rest: str) -> list[str]:
    if op == "conditional":
        listed = re.search(r"branch_computations=\{(.*?)\}", rest)
        if listed:
            return [name.strip().lstrip("%") for name in listed[1].split(",")]
        return re.findall(r"(?:true|false)_computation=%?([\w.\-]+)", rest)
    pattern = _CALLED.get(op)
    return re.findall(pattern, rest) if pattern else []


def _call(
    kind: str, shape: str, rest: str, bodies: dict[str, list[str]]
) -> tuple[str, frozenset[tuple[int, ...]], int]:
    n_bits = sum(map(_n_bits, _ARRAY.findall(shape)))
    if kind == "collective-permute":
        pairs = re.search(r"source_target_pairs=\{(.*?)\}\}", rest)
        return kind, frozenset(_lists(pairs[1] + "}")) if pairs else frozenset(), _bytes(n_bits)
    groups = _groups(rest)
    size = max(1, *map(len, groups))
    # Of these two the result tells, and the operand is wanted.
    n_bits = {"all-gather": n_bits // size, "reduce-scatter": n_bits * size}.get(kind, n_bits)
    reducer = re.search(r"to_apply=%?([\w.\-]+)", rest)
    if reducer:
        root = next(line for line in bodies[reducer[1]] if line.startswith("ROOT"))
        kind = f"{kind} {_INSTRUCTION.match(root)[2]}"
    return kind, frozenset(tuple(sorted(group)) for group in groups), _bytes(n_bits)


def _n_bits(array: tuple[str, str]) -> int:
    dtype, sizes = array
    n_elements = math.prod(int(size) for size in sizes.split(",") if size)
    return n_elements * (8 if dtype == "pred" else int(re.match(r"[a-z]+(\d+)", dtype)[1]))


def _bytes(n_bits: int) -> int:
    return (n_bits + 7) // 8


def _groups(rest: str) -> list[tuple[int, ...]]:
    if match := re.search(_ORDERED_MESH, rest):
        return _sub_axis_groups(*match.groups())
    if match := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest):
        shape, base = ([int(n) for n in match[i].split(",")] for i in (1, 2))
        ids = np.arange(math.prod(base)).reshape(base)
        ids = ids.transpose([int(n) for n in match[3].split(",")]) if match[3] else ids
        return [tuple(map(int, row)) for row in ids.reshape(shape)]
    if match := re.search(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}", rest):
        return _lists(match[1]) or [tuple(range(N_DEVICES))]
    return [()]  # a spelling that only the partitioner uses, for calls of its own


_ORDERED_MESH = (
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\]T\(([\d,]+)\)\))? "
    r"\{([^}]*)\}"
)


def _sub_axis_groups(axes: str, base: str, order: str, used: str) -> list[tuple[int, ...]]:
    """Return the groups of `mesh['a'=4], device_ids=([2,2]T(1,0)) {'a':(1)2}`."""
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", axes)}
    ids = np.arange(math.prod(sizes.values()))
    if base:
        shape, axes_order = ([int(n) for n in text.split(",")] for text in (base, order))
        ids = ids.reshape(shape).transpose(axes_order)
    parts: dict[str, int] = {}
    names = []
    for name, size in sizes.items():
        match = re.search(rf"'{re.escape(name)}'(?::\((\d+)\)(\d+))?", used)
        before, length = (int(match[1]), int(match[2])) if match and match[1] else (1, size)
        parts |= {f"{name}<": before, name: length, f"{name}>": size // before // length}
        names += [name] if match else []
    return [tuple(int(ids.flat[n]) for n in group) for group in groups_along(parts, names)]


def _lists(text: str) -> list[tuple[int, ...]]:
    return [tuple(int(n) for n in group.split(",")) for group in re.findall(r"\{([\d,]+)\}", text)]


def groups_along(sizes: dict[str, int], names: list[str]) -> list[tuple[int, ...]]:
    """Return the devices that differ in `names` alone, each group in the order of `names`."""
    ids = np.arange(math.prod(sizes.values())).reshape(tuple(sizes.values()))
    order = [*(n for n in sizes if n not in names), *names]
    moved = ids.transpose([list(sizes).index(name) for name in order])
    rows = moved.reshape(-1, math.prod(sizes[name] for name in names))
    return [tuple(map(int, row)) for row in rows]
