"""Compares plain values: numbers, containers, slices, arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from shardlab.checks.tolerance import is_close
from shardlab.judge.cases import Case
from shardlab.judge.grading.evidence import array_text, is_float, pair_texts
from shardlab.judge.grading.grade import absolute_tolerance
from shardlab.judge.verdict import Verdict

_MAX_TEXT = 120


def grade_value(case: Case, actual: Any, expected: Any) -> list[Verdict]:
    """Return the first difference between two plain values; empty if there is none."""
    return list(_compare_values(case, actual, expected, "result"))[:1]


def _compare_values(case: Case, actual: Any, expected: Any, name: str) -> Iterator[Verdict]:
    if isinstance(expected, dict):
        yield from _compare_dicts(case, actual, expected, name)
    elif isinstance(expected, (list, tuple)):
        if not isinstance(actual, (list, tuple)) or len(actual) != len(expected):
            yield _difference("SHAPE", name, _short_repr(actual), _short_repr(expected))
            return
        if isinstance(expected, tuple) and isinstance(actual, list):
            texts = _short_repr(actual), _short_repr(expected)
            yield _difference("DTYPE", name, *texts, fix="return a tuple, not a list.")
            return
        for number, (item, expected_item) in enumerate(zip(actual, expected, strict=True)):
            yield from _compare_values(case, item, expected_item, f"{name}[{number}]")
    elif isinstance(expected, (bool, int, float, np.ndarray, np.generic)):
        yield from _compare_numbers(case, actual, np.asarray(expected), name)
    elif type(actual) is not type(expected):
        yield _difference("SHAPE", name, _short_repr(actual), _short_repr(expected))
    elif actual != expected:
        yield _difference("WA", name, _short_repr(actual), _short_repr(expected))


def _difference(code: str, name: str, actual: str, expected: str, fix: str = "") -> Verdict:
    return Verdict(code=code, what=f"{name} is {actual}, expected {expected}.", fix=fix)


def _compare_dicts(
    case: Case, actual: Any, expected: dict[Any, Any], name: str
) -> Iterator[Verdict]:
    keys = _short_repr(list(expected))
    if not isinstance(actual, dict):
        yield _difference("SHAPE", name, _short_repr(actual), f"a dict with {keys}")
        return
    missing = [key for key in expected if key not in actual]
    unexpected = [key for key in actual if key not in expected]
    if missing or unexpected:
        parts = [f"lacks {_short_repr(missing[0])}"] if missing else []
        parts += [f"has the unexpected {_short_repr(unexpected[0])}"] if unexpected else []
        yield Verdict(code="SHAPE", what=f"{name} {' and '.join(parts)}; expected keys {keys}.")
        return
    for key, value in expected.items():
        yield from _compare_values(case, actual[key], value, f"{name}[{key!r}]")


def _compare_numbers(case: Case, actual: Any, expected: Any, name: str) -> Iterator[Verdict]:
    try:
        array = np.asarray(actual)
    except ValueError:  # rows of different lengths
        yield _difference("SHAPE", name, _short_repr(actual), array_text(expected))
        return
    is_bool_expected = expected.dtype.kind == "b"
    if array.dtype.kind not in "biufc" and not is_float(array.dtype):
        kind = "True or False" if is_bool_expected else "a number"
        yield _difference("DTYPE", name, _short_repr(actual), kind, fix=f"return {kind}.")
    elif array.shape != expected.shape:
        sentence = f"{name} has shape {array.shape}, expected {expected.shape}."
        yield Verdict(code="SHAPE", what=sentence)
    elif (array.dtype.kind == "b") != is_bool_expected:
        kind = "True or False" if is_bool_expected else "a number, not True or False"
        yield _difference(
            "DTYPE", name, array_text(array), array_text(expected), fix=f"return {kind}."
        )
    elif not is_close(array, expected, absolute_tolerance(case, expected)):
        yield _difference("WA", name, *pair_texts(array, expected))
    elif expected.dtype.kind in "iu" and is_float(array.dtype):
        texts = _short_repr(actual), array_text(expected)
        yield _difference("DTYPE", name, *texts, fix="return an int, not a float.")
    # A Python int can be used as a float anywhere; an int32 array is not a float array.
    elif expected.ndim and is_float(expected.dtype) and array.dtype.kind in "iu":
        sentence = f"{name} is an array of {array.dtype}, expected floats."
        yield Verdict(code="DTYPE", what=sentence, fix="return an array of floats.")


def _short_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 4]} ..."
