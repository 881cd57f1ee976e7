"""What every error of shardlab is: a code and three parts."""

from __future__ import annotations

from typing import Any, ClassVar

from shardlab.errors.brief import seen


class LabError(Exception):
    """An error with a code and three parts, so that terminal, page, JSON and tests share the words.

    >>> print(LabError("Array axis 0 is odd.", where="shape (3,)", fix="pad it to 4."))
    [lab] Array axis 0 is odd.
      where: shape (3,)
      try:   pad it to 4.
    """

    code: ClassVar[str] = "lab"
    exit_code: ClassVar[int] = 2  # of a command that ends with it

    def __init_subclass__(cls) -> None:
        # The name by which a person catches it, also in tracebacks.
        cls.__module__ = "shardlab.errors"

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        # What is shown of a file or a name must not move a cursor.
        what, where, fix = seen(what), seen(where), seen(fix)
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

    def __reduce__(self) -> tuple[Any, ...]:
        # The parts are keywords, which Exception's own pickling does not hand back.
        return _restored, (type(self), self.what, self.where, self.fix)

    def to_json(self) -> dict[str, Any]:
        """Return the parts as plain data."""
        return {"code": self.code, "what": self.what, "where": self.where, "fix": self.fix}


def _restored(kind: type[LabError], what: str, where: str, fix: str) -> LabError:
    error = kind.__new__(kind)
    LabError.__init__(error, what, where=where, fix=fix)
    return error
