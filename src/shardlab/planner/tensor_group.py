"""Families: tensors that are alike but for the numbers in their paths.

>>> from shardlab.sharding.dtype import parse_dtype
>>> one = parse_tensor_group("layers.{0..3}.up.weight", (8, 4), parse_dtype("bf16"))
>>> one.name, one.n_tensors, one.numbers_text, list(one.paths())[-1]
('layers.*.up.weight', 4, '0..3', 'layers.3.up.weight')

A model of 90,000 tensors is a few dozen families, so that plans cost the same at any depth.

One tensor of a model: where it stands, its shape and dtype, and what its author said of it.

The numbers in the paths of a family: as ranges where they fill them, and in words.

>>> ranges_of([("0", "1"), ("0", "2"), ("3", "1"), ("3", "2")])
(range(0, 4, 3), range(1, 3))
>>> numbers_text((range(3, 61), range(256)))
'3..60 × 0..255'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from shardlab.sharding.dtype import Dtype
from shardlab.sharding.spec import Spec

LogicalAxes = tuple[str | None, ...]


@dataclass(frozen=True)
class Tensor:
    """A tensor by its path, as `model.layers.0.mlp.up_proj.weight` or `layers/0/mlp/kernel`.

    `axes` are logical names of its array axes (`embed`, `mlp`), `spec` the sharding that the model
    itself asks for; both only where the source has them. What no optimizer changes, such as the
    statistics of a norm or the state of a random stream, is held but not trained; so is a `state`,
    an array that an optimizer keeps.
    """

    path: str
    shape: tuple[int, ...]
    dtype: Dtype
    axes: LogicalAxes | None = None
    spec: Spec | None = None
    is_trained: bool = True
    is_optimizer_state: bool = False


Numbers = tuple[str, ...]  # those of one path, as they are written: "007" is not "7"

_DIGITS = 18  # a longer one is no number of a layer, and Python refuses to read thousands
_RUNS = 4  # of one column; more are left out of the text


def ranges_of(listed: Sequence[Numbers]) -> tuple[range, ...] | None:
    """Return the ranges whose combinations are exactly these numbers, None where there are none."""
    columns = [set(column) for column in zip(*listed, strict=True)]
    if not listed or prod(map(len, columns)) != len(listed) or len(set(listed)) != len(listed):
        return None
    ranges = [_range(column) for column in columns]
    return None if None in ranges else tuple(each for each in ranges if each is not None)


def _range(column: set[str]) -> range | None:
    """Return the range that holds these numbers and no other."""
    if any(len(each) > _DIGITS or (each[0] == "0" and each != "0") for each in column):
        return None
    values = sorted(map(int, column))
    step = values[1] - values[0] if len(values) > 1 else 1
    found = range(values[0], values[-1] + 1, step)
    return found if len(found) == len(values) and all(map(found.__contains__, values)) else None


def numbers_text(ranges: Sequence[range], listed: Sequence[Numbers] | None = None) -> str:
    """Return in words which numbers there are.

    >>> numbers_text((), [("0",), ("1",), ("2",), ("7",)])
    '0..2, 7'
    >>> numbers_text((range(0, 80, 4),))
    '0..76 by 4'
    """
    if listed is None:
        return " × ".join(map(_range_text, ranges))
    columns = [set(column) for column in zip(*listed, strict=True)]
    if prod(map(len, columns)) == len(listed):
        return " × ".join(map(_column_text, columns))
    shown = ", ".join(f"({', '.join(each)})" for each in listed[:3])
    return shown if len(listed) <= 3 else f"{shown}, … {len(listed):,} in all"


def _range_text(numbers: range) -> str:
    if len(numbers) < 2:
        return "".join(map(str, numbers))
    return f"{numbers[0]}..{numbers[-1]}" + (f" by {numbers.step}" if numbers.step > 1 else "")


def _column_text(column: set[str]) -> str:
    runs = list(_runs(sorted(column, key=lambda each: (len(each.lstrip("0")), each.lstrip("0")))))
    shown = ", ".join(run[0] if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs[:_RUNS])
    return shown if len(runs) <= _RUNS else f"{shown}, … {len(column):,} in all"


def _runs(numbers: Iterable[str]) -> Iterator[list[str]]:
    """Yield the numbers cut wherever one is not the one before plus one, written as wide."""
    run: list[str] = []
    for each in numbers:
        if run and not _is_next(run[-1], each):
            yield run
            run = []
        run.append(each)
    yield run


def _is_next(number: str, other: str) -> bool:
    if len(other) > _DIGITS or int(other) != int(number) + 1:
        return False
    padded = number.startswith("0") and len(number) > 1
    return not other.startswith("0") if not padded else len(other) == len(number)


# A number stands alone between separators: `layers.3.`, `block_12/`, `[0]`; not the 1 of `fc1`.
_NUMBER = re.compile(r"(?<![^./\[\]_:'\"-])([0-9]+)(?![^./\[\]_:'\"-])")
# the word that a number is part of, if it is none that counts layers or experts
_WORD = re.compile(r"(?<![A-Za-z])(?!(?:\w*(?:layers?|blocks?|experts?|stages?)|h)_$)\w+_$", re.I)
_END = 40  # letters before a number that are looked at
_PAIR = 2
RANGE = re.compile(r"\{([0-9]{1,9})\.\.([0-9]{1,9})\}")


@dataclass(frozen=True, kw_only=True)
class TensorGroup:
    """Tensors of one shape and dtype whose paths are `path_parts` with numbers between them.

    The numbers are all combinations of `ranges`, or the `listed_numbers` ones.
    """

    path_parts: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: Dtype
    ranges: tuple[range, ...] = ()
    listed_numbers: tuple[Numbers, ...] | None = None
    axes: LogicalAxes | None = None
    spec: Spec | None = None
    is_trained: bool = True
    is_optimizer_state: bool = False
    stacked_meanings: LogicalAxes | None = (
        None  # axis names that stacking knows; `axes` are the author's alone
    )

    @cached_property
    def name(self) -> str:
        """The path with a star for each number, or the path itself where there is one tensor."""
        return next(self.paths()) if self.n_tensors == 1 else "*".join(self.path_parts)

    @property
    def n_tensors(self) -> int:
        return (
            prod(map(len, self.ranges)) if self.listed_numbers is None else len(self.listed_numbers)
        )

    @property
    def n_elements(self) -> int:
        """Elements of one of its tensors."""
        return prod(self.shape)

    @cached_property
    def numbers_text(self) -> str:
        """Which numbers the stars of the name stand for, as `3..60` or `3..60 × 0..255`."""
        return "" if self.n_tensors == 1 else numbers_text(self.ranges, self.listed_numbers)

    def numbers(self) -> Iterator[Numbers]:
        """Yield the numbers of each path."""
        if self.listed_numbers is not None:
            yield from self.listed_numbers
        else:
            yield from _combinations(self.ranges)

    def paths(self) -> Iterator[str]:
        return map(self.path, self.numbers())

    def path(self, numbers: Numbers) -> str:
        return "".join(map("".join, zip(self.path_parts, (*numbers, ""), strict=True)))

    def with_numbers(self, numbers: Iterable[Numbers]) -> TensorGroup:
        """Return the part of the family that has these numbers."""
        listed = tuple(numbers)
        ranges = ranges_of(listed)
        if ranges is None:
            return replace(self, ranges=(), listed_numbers=listed)
        return replace(self, ranges=ranges, listed_numbers=None)


def parse_tensor_group(
    path: str,
    shape: tuple[int, ...],
    dtype: Dtype,
    axes: LogicalAxes | None = None,
    spec: Spec | None = None,
) -> TensorGroup:
    """Return the family of a path in which `{0..31}` stands for the numbers 0 to 31."""
    pieces, ranges, start = [], [], 0
    for found in RANGE.finditer(path):
        pieces.append(path[start : found.start()])
        ranges.append(range(int(found[1]), int(found[2]) + 1))
        start = found.end()
    return TensorGroup(
        path_parts=(*pieces, path[start:]),
        shape=shape,
        dtype=dtype,
        ranges=tuple(ranges),
        listed_numbers=None,
        axes=axes,
        spec=spec,
    )


def group_tensors(tensors: Iterable[Tensor]) -> tuple[TensorGroup, ...]:
    """Return the tensors grouped: those whose paths differ in numbers alone, alike otherwise.

    Families come in the order in which their first tensors do. A number that all tensors of a
    family share is written in its name, as the 61 of `layers.61.experts.*.up`.
    """
    groups: dict[tuple[object, ...], tuple[Tensor, list[Numbers]]] = {}
    for each in tensors:
        parts = _NUMBER.split(each.path)  # pieces with the numbers between them
        kind = (
            each.shape,
            each.dtype.name,
            each.axes,
            each.spec,
            each.is_trained,
            each.is_optimizer_state,
        )
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


def _family(one: Tensor, listed: Sequence[Numbers]) -> TensorGroup:
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
    group = TensorGroup(
        path_parts=tuple(pieces),
        shape=one.shape,
        dtype=one.dtype,
        axes=one.axes,
        spec=one.spec,
        is_trained=one.is_trained,
        is_optimizer_state=one.is_optimizer_state,
    )
    return group.with_numbers(listed)
