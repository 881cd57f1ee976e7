"""Errors a person meets, each in three parts: what happened, where, and what to try.

LabError
├─ LayoutError (ValueError)
└─ SimulationError (RuntimeError)
"""

from __future__ import annotations

from typing import Any, ClassVar


class LabError(Exception):
    """An error with a code and three parts, so that terminal, page, JSON and tests share the words.

    >>> print(LabError("Array axis 0 is odd.", where="shape (3,)", fix="pad it to 4."))
    [lab] Array axis 0 is odd.
      where: shape (3,)
      try:   pad it to 4.
    """

    code: ClassVar[str] = "lab"

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what, where, fix)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        lines = [f"[{self.code}] {self.what}"]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  try:   {self.fix}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the parts as plain data."""
        return {"code": self.code, "what": self.what, "where": self.where, "fix": self.fix}


class LayoutError(LabError, ValueError):
    """A layout that JAX would refuse too."""

    code = "layout"


class SimulationError(LabError, RuntimeError):
    """A program that cannot be simulated as it stands."""

    code = "simulate"
