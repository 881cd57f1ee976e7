"""Tensor groups: tensors of one shape and dtype whose paths differ only in numbers.

>>> from shardlab.sharding.dtype import parse_dtype
>>> group = parse_tensor_group("layers.{0..3}.up.weight", (8, 4), parse_dtype("bf16"))
>>> group.name, group.n_tensors, group.numbers_text, list(group.paths())[-1]
('layers.*.up.weight', 4, '0..3', 'layers.3.up.weight')

A model of 90,000 tensors has a few dozen groups, so the cost of a plan does not grow with the depth
of the model. The numbers of a group are stored as ranges if they fill them, otherwise one by one:

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

# Logical axis names in the sense of Flax and MaxText ("embed", "mlp"), one for each dimension.
LogicalAxes = tuple[str | None, ...]
Numbers = tuple[str, ...]  # the numbers in one path, as written: "007" is not "7"

# Longer digit strings are hashes or dates, not layer numbers, and int() rejects very long ones.
_MAX_DIGITS = 18
_MAX_RUNS = 4  # runs of consecutive numbers shown for one position
_MAX_TUPLES = 3  # numbers shown one by one

# A number must stand alone between separators: `layers.3.`, `block_12/`, `[0]`; not the 1 of `fc1`.
_NUMBER = re.compile(r"(?<![^./\[\]_:'\"-])([0-9]+)(?![^./\[\]_:'\"-])")
# A word that ends in `_` before a number, unless the word counts layers, blocks, experts or stages.
_COMPONENT = re.compile(
    r"(?<![A-Za-z])(?!(?:\w*(?:layers?|blocks?|experts?|stages?)|h)_$)\w+_$", re.I
)
_MAX_WORD = 40  # characters before a number that _COMPONENT is searched in
_PAIR = 2
RANGE = re.compile(r"\{([0-9]{1,9})\.\.([0-9]{1,9})(?:\.\.([0-9]{1,9}))?\}")


@dataclass(frozen=True)
class Tensor:
    """A tensor by its path, such as `model.layers.0.mlp.up_proj.weight` or `layers/0/mlp/kernel`.

    `axes` are the logical names of its dimensions (`embed`, `mlp`) and `spec` is the sharding that
    the model itself declares; both are None if the source does not have them. Arrays that no
    optimizer updates (batch statistics, random-number state) take memory but are not trained.
    Arrays of an optimizer are not trained either and have `is_optimizer_state`.
    """

    path: str
    shape: tuple[int, ...]
    dtype: Dtype
    axes: LogicalAxes | None = None
    spec: Spec | None = None
    is_trained: bool = True
    is_optimizer_state: bool = False


@dataclass(frozen=True, kw_only=True)
class TensorGroup:
    """Tensors of one shape and dtype whose paths are `path_parts` with numbers between them.

    The numbers are all combinations of `ranges`, or exactly the `listed_numbers`.
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
    # Dimension meanings that stacking adds; `axes` holds only names that the model's author wrote.
    stacked_meanings: LogicalAxes | None = None

    @cached_property
    def name(self) -> str:
        """The path with a star for each number; for a single tensor the path itself."""
        return next(self.paths()) if self.n_tensors == 1 else "*".join(self.path_parts)

    @property
    def n_tensors(self) -> int:
        """The number of tensors in the group."""
        if self.listed_numbers is None:
            return prod(map(len, self.ranges))
        return len(self.listed_numbers)

    @property
    def n_elements(self) -> int:
        """Elements of one tensor of the group."""
        return prod(self.shape)

    @cached_property
    def numbers_text(self) -> str:
        """The numbers that the stars in the name stand for, as `3..60` or `3..60 × 0..255`."""
        return "" if self.n_tensors == 1 else numbers_text(self.ranges, self.listed_numbers)

    def numbers(self) -> Iterator[Numbers]:
        """Yield the numbers of each path."""
        if self.listed_numbers is not None:
            yield from self.listed_numbers
        else:
            yield from _iterate_product(self.ranges)

    def paths(self) -> Iterator[str]:
        """Yield the path of each tensor."""
        return map(self.path, self.numbers())

    def path(self, numbers: Numbers) -> str:
        """Return the path of the tensor with these numbers."""
        return "".join(map("".join, zip(self.path_parts, (*numbers, ""), strict=True)))

    def with_numbers(self, numbers: Iterable[Numbers]) -> TensorGroup:
        """Return the subset of the group that has these numbers."""
        subset = tuple(numbers)
        ranges = ranges_of(subset)
        if ranges is None:
            return replace(self, ranges=(), listed_numbers=subset)
        return replace(self, ranges=ranges, listed_numbers=None)


def parse_tensor_group(
    path: str,
    shape: tuple[int, ...],
    dtype: Dtype,
    axes: LogicalAxes | None = None,
    spec: Spec | None = None,
) -> TensorGroup:
    """Return the group of a path in which `{0..31}` stands for the numbers 0 to 31.

    `{1..47..2}` stands for every second number, as in a shell.
    """
    path_parts, ranges, start = [], [], 0
    for match in RANGE.finditer(path):
        path_parts.append(path[start : match.start()])
        ranges.append(range(int(match[1]), int(match[2]) + 1, int(match[3] or 1)))
        start = match.end()
    return TensorGroup(
        path_parts=(*path_parts, path[start:]),
        shape=shape,
        dtype=dtype,
        ranges=tuple(ranges),
        listed_numbers=None,
        axes=axes,
        spec=spec,
    )


def group_tensors(tensors: Iterable[Tensor]) -> tuple[TensorGroup, ...]:
    """Return the tensors in groups whose paths differ only in numbers.

    Groups come in the order of their first tensors. A number that all tensors of a group share is
    part of its name, as the 61 of `layers.61.experts.*.up`.
    """
    by_skeleton: dict[tuple[object, ...], tuple[Tensor, list[Numbers]]] = {}
    for tensor in tensors:
        parts = _NUMBER.split(tensor.path)  # text and numbers alternate
        key = (
            tuple(parts[::2]),
            tensor.shape,
            tensor.dtype.name,
            tensor.axes,
            tensor.spec,
            tensor.is_trained,
            tensor.is_optimizer_state,
        )
        numbers = tuple(parts[1::2])
        if key in by_skeleton:
            by_skeleton[key][1].append(numbers)
        else:
            by_skeleton[key] = (tensor, [numbers])
    return tuple(
        _build_group(example, numbers)
        for first, all_numbers in by_skeleton.values()
        for example, numbers in _split_components(first, all_numbers)
    )


def _split_components(
    first: Tensor, all_numbers: list[Numbers]
) -> Iterator[tuple[Tensor, list[Numbers]]]:
    """Yield an example tensor and its numbers for each group of tensors with the same path text.

    Exactly two values of a number after an underscore, such as MaxText's `wi_0` and `wi_1`, are two
    components of one layer (gate and up), not two layers. They get separate groups, unless the word
    before the number says that it counts layers, blocks, experts or stages.
    """
    path_parts = _NUMBER.split(first.path)[::2]
    candidates = [
        position
        for position, part in enumerate(path_parts[:-1])
        if _COMPONENT.search(part[-_MAX_WORD:])
    ]
    pairs = [
        position
        for position in candidates
        if len({numbers[position] for numbers in all_numbers}) == _PAIR
    ]
    if not pairs:
        yield first, all_numbers
        return
    by_component: dict[Numbers, list[Numbers]] = {}
    for numbers in all_numbers:
        component = tuple(numbers[position] for position in pairs)
        by_component.setdefault(component, []).append(numbers)
    for members in by_component.values():
        path = "".join(map("".join, zip(path_parts, (*members[0], ""), strict=True)))
        yield replace(first, path=path), members


def _build_group(example: Tensor, all_numbers: Sequence[Numbers]) -> TensorGroup:
    """Return the group of a tensor and of those that differ from it only in numbers."""
    parts = _NUMBER.split(example.path)
    path_parts, varying = [parts[0]], []
    for position, column in enumerate(zip(*all_numbers, strict=True)):
        following_text = parts[2 * position + 2]
        if all(number == column[0] for number in column):
            path_parts[-1] += column[0] + following_text
        else:
            varying.append(position)
            path_parts.append(following_text)
    if len(varying) < len(parts) // 2:
        all_numbers = [tuple(numbers[position] for position in varying) for numbers in all_numbers]
    group = TensorGroup(
        path_parts=tuple(path_parts),
        shape=example.shape,
        dtype=example.dtype,
        axes=example.axes,
        spec=example.spec,
        is_trained=example.is_trained,
        is_optimizer_state=example.is_optimizer_state,
    )
    return group.with_numbers(all_numbers)


def _iterate_product(ranges: Sequence[range]) -> Iterator[Numbers]:
    """Yield all combinations of the ranges, as text."""
    # itertools.product would first copy every range into a tuple; callers often stop after one.
    if not ranges:
        yield ()
        return
    *leading, last = ranges
    for head in _iterate_product(leading):
        yield from ((*head, str(number)) for number in last)


def ranges_of(all_numbers: Sequence[Numbers]) -> tuple[range, ...] | None:
    """Return the ranges whose combinations are exactly these numbers; None if there are none."""
    columns = [set(column) for column in zip(*all_numbers, strict=True)]
    is_full_product = prod(map(len, columns)) == len(all_numbers) == len(set(all_numbers))
    if not all_numbers or not is_full_product:
        return None
    ranges = [_range_of_column(column) for column in columns]
    return None if None in ranges else tuple(numbers for numbers in ranges if numbers is not None)


def _range_of_column(column: set[str]) -> range | None:
    """Return the range that has exactly these numbers."""
    if any(len(number) > _MAX_DIGITS or _has_leading_zero(number) for number in column):
        return None  # a range would print 007 as 7, which is another path
    values = sorted(map(int, column))
    step = values[1] - values[0] if len(values) > 1 else 1
    numbers = range(values[0], values[-1] + 1, step)
    is_exact = len(numbers) == len(values) and all(map(numbers.__contains__, values))
    return numbers if is_exact else None


def _has_leading_zero(number: str) -> bool:
    return number[0] == "0" and number != "0"


def numbers_text(ranges: Sequence[range], listed_numbers: Sequence[Numbers] | None = None) -> str:
    """Return the numbers as short text.

    >>> numbers_text((), [("0",), ("1",), ("2",), ("7",)])
    '0..2, 7'
    >>> numbers_text((range(0, 80, 4),))
    '0..76 by 4'
    """
    if listed_numbers is None:
        return " × ".join(map(_range_text, ranges))
    columns = [set(column) for column in zip(*listed_numbers, strict=True)]
    if prod(map(len, columns)) == len(listed_numbers):
        return " × ".join(map(_column_text, columns))
    text = ", ".join(f"({', '.join(numbers)})" for numbers in listed_numbers[:_MAX_TUPLES])
    n_tuples = len(listed_numbers)
    return text if n_tuples <= _MAX_TUPLES else f"{text}, … {n_tuples:,} total"


def _range_text(numbers: range) -> str:
    if len(numbers) < 2:
        return "".join(map(str, numbers))
    return f"{numbers[0]}..{numbers[-1]}" + (f" by {numbers.step}" if numbers.step > 1 else "")


def _column_text(column: set[str]) -> str:
    # Sort by value without int(), which rejects very long digit strings.
    ordered = sorted(column, key=lambda number: (len(number.lstrip("0")), number.lstrip("0")))
    runs = list(_consecutive_runs(ordered))
    text = ", ".join(
        run[0] if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs[:_MAX_RUNS]
    )
    return text if len(runs) <= _MAX_RUNS else f"{text}, … {len(column):,} total"


def _consecutive_runs(numbers: Iterable[str]) -> Iterator[list[str]]:
    """Yield runs in which each number is the one before plus one, written at the same width."""
    run: list[str] = []
    for number in numbers:
        if run and not _is_successor(run[-1], number):
            yield run
            run = []
        run.append(number)
    yield run


def _is_successor(number: str, candidate: str) -> bool:
    if len(candidate) > _MAX_DIGITS or int(candidate) != int(number) + 1:
        return False
    if _has_leading_zero(number):  # zero-padded numbers keep their width: 009, 010
        return len(candidate) == len(number)
    return not candidate.startswith("0")
