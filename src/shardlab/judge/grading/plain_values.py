"""Compares plain values: numbers, containers, slices, arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from shardlab.checks.tolerance import is_close
from shardlab.judge.cases import Case
from shardlab.judge.grading.evidence import is_float, numbers
from shardlab.judge.grading.grade import tolerance
from shardlab.judge.verdict import Verdict

_MOST_LETTERS = 120


def grade_value(case: Case, got: Any, expected: Any) -> list[Verdict]:
    """Return the first thing that is wrong with a plain value; empty where it is right."""
    return list(_compared(case, got, expected, "result"))[:1]


def _compared(case: Case, got: Any, want: Any, name: str) -> Iterator[Verdict]:
    if isinstance(want, dict):
        yield from _mapping(case, got, want, name)
    elif isinstance(want, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(want):
            yield Verdict(code="SHAPE", what=f"{name} is {_short(got)}, want {_short(want)}.")
            return
        for number, (one, other) in enumerate(zip(got, want, strict=True)):
            yield from _compared(case, one, other, f"{name}[{number}]")
    elif isinstance(want, (bool, int, float, np.ndarray, np.generic)):
        yield from _numbers(case, got, np.asarray(want), name)
    elif type(got) is not type(want):
        yield Verdict(code="SHAPE", what=f"{name} is {_short(got)}, want {_short(want)}.")
    elif got != want:
        yield Verdict(code="WA", what=f"{name} is {_short(got)}, want {_short(want)}.")


def _mapping(case: Case, got: Any, want: dict[Any, Any], name: str) -> Iterator[Verdict]:
    if not isinstance(got, dict):
        yield Verdict(
            code="SHAPE", what=f"{name} is {_short(got)}, want a dict with {_short(list(want))}."
        )
        return
    lacks, extra = [key for key in want if key not in got], [key for key in got if key not in want]
    if lacks or extra:
        told = [f"lacks {_short(lacks[0])}"] if lacks else []
        told += [f"has {_short(extra[0])}, which was not asked for"] if extra else []
        yield Verdict(
            code="SHAPE", what=f"{name} {' and '.join(told)}; want keys {_short(list(want))}."
        )
        return
    for key, value in want.items():
        yield from _compared(case, got[key], value, f"{name}[{key!r}]")


def _numbers(case: Case, got: Any, want: Any, name: str) -> Iterator[Verdict]:
    try:
        found = np.asarray(got)
    except ValueError:  # rows of different lengths
        yield Verdict(code="SHAPE", what=f"{name} is {_short(got)}, want {numbers(want)}.")
        return
    if found.dtype.kind not in "biufc" and not is_float(found.dtype):
        wanted = "True or False" if want.dtype.kind == "b" else "a number"
        yield Verdict(
            code="DTYPE", what=f"{name} is {_short(got)}, want {wanted}.", fix=f"return {wanted}."
        )
    elif found.shape != want.shape:
        yield Verdict(code="SHAPE", what=f"{name} has shape {found.shape}, want {want.shape}.")
    elif (found.dtype.kind == "b") != (want.dtype.kind == "b"):
        wanted = "True or False" if want.dtype.kind == "b" else "a number, not True or False"
        what = f"{name} is {numbers(found)}, want {numbers(want)}."
        yield Verdict(code="DTYPE", what=what, fix=f"return {wanted}.")
    elif not is_close(found, want, tolerance(case, want)):
        yield Verdict(code="WA", what=f"{name} is {numbers(found)}, want {numbers(want)}.")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 4]} ..."
