"""The numbers in the paths of a family: as ranges where they fill them, and in words.

>>> ranges_of([("0", "1"), ("0", "2"), ("3", "1"), ("3", "2")])
(range(0, 4, 3), range(1, 3))
>>> numbers_text((range(3, 61), range(256)))
'3..60 × 0..255'
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

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
