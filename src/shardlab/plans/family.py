"""Families: tensors that are alike but for the numbers in their paths.

>>> from shardlab.layouts.dtype import parse_dtype
>>> one = parse_family("layers.{0..3}.up.weight", (8, 4), parse_dtype("bf16"))
>>> one.name, one.n_tensors, one.numbers_text, list(one.paths())[-1]
('layers.*.up.weight', 4, '0..3', 'layers.3.up.weight')

A model of 90,000 tensors is a few dozen families, so that plans cost the same at any depth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from shardlab.layouts.dtype import Dtype
from shardlab.layouts.spec import Spec
from shardlab.plans.numbers import Numbers, numbers_text, ranges_of
from shardlab.plans.tensor import Axes, Tensor

# A number stands alone between separators: `layers.3.`, `block_12/`, `[0]`; not the 1 of `fc1`.
_NUMBER = re.compile(r"(?<![^./\[\]_:'\"-])([0-9]+)(?![^./\[\]_:'\"-])")
# the word that a number is part of, if it is none that counts layers or experts
_WORD = re.compile(r"(?<![A-Za-z])(?!(?:\w*(?:layers?|blocks?|experts?|stages?)|h)_$)\w+_$", re.I)
_END = 40  # letters before a number that are looked at
_PAIR = 2
RANGE = re.compile(r"\{([0-9]{1,9})\.\.([0-9]{1,9})\}")


@dataclass(frozen=True)
class Family:
    """Tensors of one shape and dtype whose paths are `pieces` with numbers between them.

    The numbers are all combinations of `ranges`, or the `listed` ones.
    """

    pieces: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: Dtype
    ranges: tuple[range, ...] = ()
    listed: tuple[Numbers, ...] | None = None
    axes: Axes | None = None
    spec: Spec | None = None
    is_trained: bool = True
    is_state: bool = False
    told: Axes | None = None  # axis names that stacking knows; `axes` are the author's alone

    @cached_property
    def name(self) -> str:
        """The path with a star for each number, or the path itself where there is one tensor."""
        return next(self.paths()) if self.n_tensors == 1 else "*".join(self.pieces)

    @property
    def n_tensors(self) -> int:
        return prod(map(len, self.ranges)) if self.listed is None else len(self.listed)

    @property
    def n_elements(self) -> int:
        """Elements of one of its tensors."""
        return prod(self.shape)

    @cached_property
    def numbers_text(self) -> str:
        """Which numbers the stars of the name stand for, as `3..60` or `3..60 × 0..255`."""
        return "" if self.n_tensors == 1 else numbers_text(self.ranges, self.listed)

    def numbers(self) -> Iterator[Numbers]:
        """Yield the numbers of each path."""
        if self.listed is not None:
            yield from self.listed
        else:
            yield from _combinations(self.ranges)

    def paths(self) -> Iterator[str]:
        return map(self.path, self.numbers())

    def path(self, numbers: Numbers) -> str:
        return "".join(map("".join, zip(self.pieces, (*numbers, ""), strict=True)))

    def only(self, numbers: Iterable[Numbers]) -> Family:
        """Return the part of the family that has these numbers."""
        listed = tuple(numbers)
        ranges = ranges_of(listed)
        if ranges is None:
            return replace(self, ranges=(), listed=listed)
        return replace(self, ranges=ranges, listed=None)


def parse_family(
    path: str,
    shape: tuple[int, ...],
    dtype: Dtype,
    axes: Axes | None = None,
    spec: Spec | None = None,
) -> Family:
    """Return the family of a path in which `{0..31}` stands for the numbers 0 to 31."""
    pieces, ranges, start = [], [], 0
    for found in RANGE.finditer(path):
        pieces.append(path[start : found.start()])
        ranges.append(range(int(found[1]), int(found[2]) + 1))
        start = found.end()
    return Family((*pieces, path[start:]), shape, dtype, tuple(ranges), None, axes, spec)


def families_of(tensors: Iterable[Tensor]) -> tuple[Family, ...]:
    """Return the tensors grouped: those whose paths differ in numbers alone, alike otherwise.

    Families come in the order in which their first tensors do. A number that all tensors of a
    family share is written in its name, as the 61 of `layers.61.experts.*.up`.
    """
    groups: dict[tuple[object, ...], tuple[Tensor, list[Numbers]]] = {}
    for each in tensors:
        parts = _NUMBER.split(each.path)  # pieces with the numbers between them
        kind = (each.shape, each.dtype.name, each.axes, each.spec, each.is_trained, each.is_state)
        key = (tuple(parts[::2]), *kind)
        numbers = tuple(parts[1::2])
        if key in groups:
            groups[key][1].append(numbers)
        else:
            groups[key] = (each, [numbers])
    parted = (each for group in groups.values() for each in _parted(*group))
    return tuple(_family(one, listed) for one, listed in parted)


def _parted(one: Tensor, listed: list[Numbers]) -> Iterator[tuple[Tensor, list[Numbers]]]:
    """Yield the tensors that are numbered; two that a number tells apart, as wi_0 and wi_1, singly.

    They are parts of one layer, unless the word before the number says that it counts layers.
    """
    pieces = _NUMBER.split(one.path)[::2]
    named = [at for at, piece in enumerate(pieces[:-1]) if _WORD.search(piece[-_END:])]
    few = [at for at in named if len({numbers[at] for numbers in listed}) == _PAIR]
    if not few:
        yield one, listed
        return
    apart: dict[Numbers, list[Numbers]] = {}
    for numbers in listed:
        apart.setdefault(tuple(numbers[at] for at in few), []).append(numbers)
    for same in apart.values():
        path = "".join(map("".join, zip(pieces, (*same[0], ""), strict=True)))
        yield replace(one, path=path), same


def _combinations(ranges: Sequence[range]) -> Iterator[Numbers]:
    """Yield as `itertools.product` does, which would first write down every range."""
    if not ranges:
        yield ()
        return
    *heads, last = ranges
    for head in _combinations(heads):
        yield from ((*head, str(number)) for number in last)


def _family(one: Tensor, listed: Sequence[Numbers]) -> Family:
    """Return the family of a tensor and of those that differ from it in numbers alone."""
    parts = _NUMBER.split(one.path)
    pieces, kept = [parts[0]], []
    for at, column in enumerate(zip(*listed, strict=True)):
        if all(number == column[0] for number in column):
            pieces[-1] += column[0] + parts[2 * at + 2]
        else:
            kept.append(at)
            pieces.append(parts[2 * at + 2])
    if len(kept) < len(parts) // 2:
        listed = [tuple(numbers[at] for at in kept) for numbers in listed]
    family = Family(
        tuple(pieces),
        one.shape,
        one.dtype,
        axes=one.axes,
        spec=one.spec,
        is_trained=one.is_trained,
        is_state=one.is_state,
    )
    return family.only(listed)
