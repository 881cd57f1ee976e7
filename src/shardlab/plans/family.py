"""Families: tensors that are alike but for the numbers in their paths.

>>> from shardlab.layouts.dtype import parse_dtype
>>> one = parse_family("layers.{0..3}.up.weight", (8, 4), parse_dtype("bf16"))
>>> one.name, one.n_tensors, list(one.paths())[-1]
('layers.*.up.weight', 4, 'layers.3.up.weight')

A model of 90,000 tensors is a few dozen families, so that plans cost the same at any depth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod

from shardlab.layouts.dtype import Dtype
from shardlab.layouts.spec import Spec
from shardlab.plans.tensor import Axes, Tensor

_NUMBER = re.compile(r"(?<![^./\[\]_-])[0-9]+(?![^./\[\]_-])")
_RANGE = re.compile(r"\{([0-9]{1,9})\.\.([0-9]{1,9})\}")
Numbers = tuple[str, ...]  # those of one path, as they are written: "007" is not "7"


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

    def numbers(self) -> Iterator[Numbers]:
        """Yield the numbers of each path."""
        if self.listed is not None:
            yield from self.listed
        else:
            yield from product(*(map(str, each) for each in self.ranges))

    def paths(self) -> Iterator[str]:
        return map(self.path, self.numbers())

    def path(self, numbers: Numbers) -> str:
        return "".join(map("".join, zip(self.pieces, (*numbers, ""), strict=True)))

    def only(self, numbers: Iterable[Numbers]) -> Family:
        """Return the part of the family that has these numbers."""
        return replace(self, ranges=(), listed=tuple(numbers))


def parse_family(
    path: str,
    shape: tuple[int, ...],
    dtype: Dtype,
    axes: Axes | None = None,
    spec: Spec | None = None,
) -> Family:
    """Return the family of a path in which `{0..31}` stands for the numbers 0 to 31."""
    pieces, ranges, start = [], [], 0
    for found in _RANGE.finditer(path):
        pieces.append(path[start : found.start()])
        ranges.append(range(int(found[1]), int(found[2]) + 1))
        start = found.end()
    return Family((*pieces, path[start:]), shape, dtype, tuple(ranges), None, axes, spec)


def families_of(tensors: Iterable[Tensor]) -> tuple[Family, ...]:
    """Return the tensors grouped: those whose paths differ in numbers alone, alike otherwise.

    Families come in the order in which their first tensors do.
    """
    groups: dict[tuple[object, ...], tuple[Tensor, list[Numbers]]] = {}
    for each in tensors:
        pieces = tuple(_NUMBER.split(each.path))
        key = (pieces, each.shape, each.dtype, each.axes, each.spec)
        groups.setdefault(key, (each, []))[1].append(tuple(_NUMBER.findall(each.path)))
    return tuple(
        Family(
            tuple(_NUMBER.split(one.path)),
            one.shape,
            one.dtype,
            (),
            tuple(listed),
            one.axes,
            one.spec,
        )
        for one, listed in groups.values()
    )
