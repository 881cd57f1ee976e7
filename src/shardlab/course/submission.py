"""One answer handed to the judge, and how far a person is with a problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Submission:
    """An answer as it was handed in. Its source and its judgement are asked for by its number."""

    number: int
    problem: str  # slug
    content_version: int
    kind: str  # run (the examples) or submit (all)
    seed: int
    when: str  # UTC, as 2026-11-16T02:44:07.120Z
    code: str = ""  # of the verdict; empty where the judging has not ended
    passed: bool = False
    counts: bool = True  # a fault of the judge's own is no attempt

    @property
    def is_finished(self) -> bool:
        return bool(self.code)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "is_finished": self.is_finished}


@dataclass(frozen=True)
class Progress:
    """What a person has done about one problem."""

    problem: str  # slug
    path: str = ""  # of the person's file; empty until started
    started_when: str = ""
    hints: int = 0  # taken
    solution_asked: int = 0  # times, before it was open
    n_runs: int = 0
    n_submits: int = 0
    solved_when: str = ""  # of the first pass
    solved_version: int = 0  # content_version of the latest pass

    @property
    def is_solved(self) -> bool:
        return bool(self.solved_when)

    @property
    def is_tried(self) -> bool:
        return bool(self.n_runs or self.n_submits)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "is_solved": self.is_solved}
