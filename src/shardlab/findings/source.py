"""A place in a person's program."""

from __future__ import annotations

from dataclasses import dataclass
from linecache import getline
from typing import Any


@dataclass(frozen=True, order=True)
class SourceLocation:
    """A file, a line in it, and the function around it.

    >>> str(SourceLocation("train.py", 41, "body"))
    'train.py:41 (body)'
    """

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place} ({self.function})" if self.function else place

    def quoted(self) -> str:
        """Return the text of the line, or nothing where the file cannot be read.

        Cells of a notebook can: Python keeps their lines.
        """
        return getline(self.file, self.line).strip() if self.line else ""

    def to_json(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "function": self.function}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SourceLocation:
        return cls(data["file"], data["line"], data["function"])


UNKNOWN_LOCATION = SourceLocation("<unknown>", 0)
