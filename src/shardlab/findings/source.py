"""A location in the user's program."""

from __future__ import annotations

from dataclasses import dataclass
from linecache import getline
from typing import Any


@dataclass(frozen=True, order=True)
class SourceLocation:
    """A file, a line in it, and the enclosing function.

    >>> str(SourceLocation("train.py", 41, "body"))
    'train.py:41 (body)'
    """

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        position = f"{self.file}:{self.line}" if self.line else self.file
        return f"{position} ({self.function})" if self.function else position

    def read_line(self) -> str:
        """Return the text of the line, or an empty string if the file cannot be read."""
        # linecache also has the cells of a notebook, which are not files.
        return getline(self.file, self.line).strip() if self.line else ""

    def to_json(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "function": self.function}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SourceLocation:
        return cls(data["file"], data["line"], data["function"])


UNKNOWN_LOCATION = SourceLocation("<unknown>", 0)


def written_name(op: str, source: SourceLocation) -> str:
    """Return the collective as the user wrote it: JAX traces a pmean to a psum and a division.

    >>> written_name("psum", UNKNOWN_LOCATION)
    'psum'
    """
    line = source.read_line()
    return "pmean" if op == "psum" and "pmean" in line and "psum" not in line else op
