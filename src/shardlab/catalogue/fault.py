"""What is wrong with a problem, in one sentence with its place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One thing to mend.

    >>> print(Fault("page.picture", "The idea has no picture.", "statement.md", 9))
    statement.md:9  The idea has no picture.  [page.picture]
    """

    rule: str
    what: str
    file: str = ""
    line: int = 0
    shows: tuple[str, ...] = ()  # lines shown beneath

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        first = f"{place}  {self.what}  [{self.rule}]" if place else f"{self.what}  [{self.rule}]"
        return "\n".join([first, *(f"    {line}" for line in self.shows)])
