"""One part of the report: a table, the bars it decides, and the figures as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Bar:
    """Something to reach, and the figure that was measured (None: not measured, see `note`)."""

    what: str
    bound: float
    figure: float | None
    at_most: bool = True
    unit: str = "x"
    note: str = ""

    @property
    def reached(self) -> bool | None:
        if self.figure is None:
            return None
        return self.figure <= self.bound if self.at_most else self.figure >= self.bound

    @property
    def verdict(self) -> str:
        """Return the verdict in words.

        >>> Bar("MLP step", 1.3, 1.42).verdict
        'NOT reached'
        >>> Bar("layouts", 100_000, None, at_most=False).verdict
        'not measured'
        """
        return {True: "reached", False: "NOT reached", None: "not measured"}[self.reached]


@dataclasses.dataclass
class Section:
    title: str
    columns: list[str]
    rows: list[list[str]] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    bars: list[Bar] = dataclasses.field(default_factory=list)
    data: list[dict[str, Any]] = dataclasses.field(default_factory=list)


def milliseconds(seconds: float | None) -> str:
    """Return a time in a table.

    >>> milliseconds(0.0123), milliseconds(2.5), milliseconds(None)
    ('12.3', '2,500', '-')
    """
    if seconds is None:
        return "-"
    ms = seconds * 1e3
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}"


def times(ratio: float | None) -> str:
    """Return a ratio in a table.

    >>> times(1.234), times(34.4), times(0.002), times(None)
    ('1.23x', '34x', '1/500', '-')
    """
    if ratio is None:
        return "-"
    if ratio < 0.1:
        return f"1/{1 / ratio:,.0f}"
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:,.0f}x"
