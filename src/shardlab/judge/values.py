"""Compares plain values: numbers, containers, slices, arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardlab.judge.cases import Case
from shardlab.records.verdict import Verdict


def grade_value(case: Case, got: Any, expected: Any) -> list[Verdict]:
    """Return what is wrong with a plain value; empty where it is right."""
    return _compared(case, got, expected, "result")


def _compared(case: Case, got: Any, want: Any, name: str) -> list[Verdict]:
    if isinstance(want, dict):
        if not isinstance(got, dict) or set(got) != set(want):
            return [Verdict("SHAPE", f"{name} is {got!r:.200}, want keys {list(want)!r:.200}.")]
        return [v for k in want for v in _compared(case, got[k], want[k], f"{name}[{k!r}]")][:1]
    if isinstance(want, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(want):
            return [Verdict("SHAPE", f"{name} is {got!r:.200}, want {want!r:.200}.")]
        pairs = enumerate(zip(got, want, strict=True))
        return [v for i, (g, w) in pairs for v in _compared(case, g, w, f"{name}[{i}]")][:1]
    if isinstance(want, (int, float, np.ndarray, np.generic)) and not isinstance(want, bool):
        return _numbers(case, got, np.asarray(want), name)
    if type(got) is not type(want) or got != want:
        return [Verdict("WA", f"{name} is {got!r:.200}, want {want!r:.200}.")]
    return []


def _numbers(case: Case, got: Any, want: Any, name: str) -> list[Verdict]:
    try:
        found = np.asarray(got)
    except ValueError:
        return [Verdict("SHAPE", f"{name} is {got!r:.200}, want {want!r:.200}.")]
    if found.shape != want.shape:
        return [Verdict("SHAPE", f"{name} has shape {found.shape}, want {want.shape}.")]
    if found.dtype.kind not in "biufc":
        return [Verdict("DTYPE", f"{name} is {got!r:.200}, want a number.")]
    atol = 0.0 if want.dtype.kind in "iu" else case.part.atol
    rtol = 0.0 if want.dtype.kind in "iu" else case.part.rtol
    if np.allclose(found, want, rtol=rtol, atol=atol):
        return []
    return [Verdict("WA", f"{name} is {found}, want {want}.")]
