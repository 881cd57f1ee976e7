"""What opens step by step: hints one at a time, the solution after a pass or when asked twice."""

from __future__ import annotations

from dataclasses import dataclass

from shardlab.catalogue.problem import Problem
from shardlab.course.store import Record


@dataclass(frozen=True)
class Hint:
    """One hint, counted from 1."""

    number: int
    of: int
    text: str

    @property
    def is_last(self) -> bool:
        return self.number == self.of


def next_hint(record: Record, problem: Problem) -> Hint | None:
    """Return the next hint, and remember it; the last one again when all were taken."""
    hints = problem.hints
    if not hints:
        return None
    number = min(record.of(problem.slug).hints + 1, len(hints))
    record.hint_taken(problem.slug, number)
    return Hint(number, len(hints), hints[number - 1])


def count_hints_used(record: Record, problem: Problem) -> tuple[Hint, ...]:
    """Return the hints that were taken, in order."""
    taken = problem.hints[: record.of(problem.slug).hints]
    return tuple(Hint(n, len(problem.hints), text) for n, text in enumerate(taken, 1))


def request_solution(record: Record, problem: Problem) -> str | None:
    """Return the solution after a pass, or when it is asked for a second time; else None."""
    now = record.of(problem.slug)
    if now.is_solved or now.solution_asked >= 2:
        return problem.text("solution.py")
    return problem.text("solution.py") if record.solution_asked(problem.slug) >= 2 else None
