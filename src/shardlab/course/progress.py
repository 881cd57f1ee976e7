"""The progress with a catalogue: the status of each problem, and the next one to solve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shardlab.catalogue.problem import Problem
from shardlab.catalogue.tracks import Catalogue, Track
from shardlab.course.store import Progress

Status = Literal["solved", "tried", "open", "locked"]


@dataclass(frozen=True, kw_only=True)
class ProblemProgress:
    """One problem with its status. A locked one has unsolved prerequisites, but can be opened."""

    number: int  # in the order of the catalogue, from 1
    problem: Problem
    track: Track
    status: Status
    missing: tuple[str, ...] = ()  # slugs of unsolved prerequisites
    is_changed: bool = False  # the task changed since it was solved
    is_next: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "slug": self.problem.slug,
            "title": self.problem.title,
            "track": self.track.folder,
            "difficulty": self.problem.difficulty,
            "tags": list(self.problem.tags),
            "mark": self.status,
            "missing": list(self.missing),
            "is_changed": self.is_changed,
            "is_next": self.is_next,
        }


def list_progress(
    catalogue: Catalogue, progress: Mapping[str, Progress]
) -> tuple[ProblemProgress, ...]:
    """Return every problem with its status, in order."""
    solved = _solved_slugs(progress)
    next_slug = next_problem(catalogue, progress)
    rows = []
    for number, (slug, problem) in enumerate(catalogue.problems.items(), 1):
        record = progress.get(slug, Progress(slug))
        missing = catalogue.missing_prerequisites(slug, solved)
        row = ProblemProgress(
            number=number,
            problem=problem,
            track=catalogue.track_of(slug),
            status=_problem_status(record, missing),
            missing=missing,
            is_changed=record.is_solved and record.solved_version != problem.content_version,
            is_next=slug == next_slug,
        )
        rows.append(row)
    return tuple(rows)


def next_problem(
    catalogue: Catalogue, progress: Mapping[str, Progress], after: str | None = None
) -> str | None:
    """Return the first problem that is open and not solved, beginning after `after` if given.

    None if all are solved.
    """
    solved = _solved_slugs(progress)
    if after is None:
        return catalogue.next_slug(solved)
    start = catalogue.slugs.index(after) + 1
    # From the current problem onwards, then from the beginning: skipped problems come last.
    for slug in (*catalogue.slugs[start:], *catalogue.slugs[:start]):
        if slug in solved or slug == after:
            continue
        if not catalogue.missing_prerequisites(slug, solved):
            return slug
    return None if after in solved else after


def _solved_slugs(progress: Mapping[str, Progress]) -> set[str]:
    return {slug for slug, record in progress.items() if record.is_solved}


def _problem_status(record: Progress, missing: tuple[str, ...]) -> Status:
    if record.is_solved:
        return "solved"
    if record.is_attempted:
        return "tried"
    return "locked" if missing else "open"
