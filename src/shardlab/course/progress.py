"""How far a person is with a catalogue: a mark for each problem, and the one that comes next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shardlab.catalogue.problem import Problem
from shardlab.catalogue.tracks import Catalogue, Track
from shardlab.course.submission import Progress

Mark = Literal["solved", "tried", "open", "locked"]


@dataclass(frozen=True, kw_only=True)
class ProblemProgress:
    """One problem with its mark. Locked says what to solve first, and forbids nothing."""

    number: int  # in the order of the catalogue, from 1
    problem: Problem
    track: Track
    mark: Mark
    missing: tuple[str, ...] = ()  # slugs to solve first
    is_changed: bool = False  # since it was solved
    is_next: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "slug": self.problem.slug,
            "title": self.problem.title,
            "track": self.track.folder,
            "difficulty": self.problem.difficulty,
            "tags": list(self.problem.tags),
            "mark": self.mark,
            "missing": list(self.missing),
            "is_changed": self.is_changed,
            "is_next": self.is_next,
        }


def course(catalogue: Catalogue, progress: Mapping[str, Progress]) -> tuple[ProblemProgress, ...]:
    """Return every problem in order."""
    done = solved(progress)
    coming = next_problem(catalogue, progress)
    return tuple(
        _step(number, problem, catalogue, progress.get(slug, Progress(slug)), done, coming)
        for number, (slug, problem) in enumerate(catalogue.problems.items(), 1)
    )


def solved(progress: Mapping[str, Progress]) -> set[str]:
    return {slug for slug, each in progress.items() if each.is_solved}


def next_problem(
    catalogue: Catalogue, progress: Mapping[str, Progress], after: str | None = None
) -> str | None:
    """Return the first problem that is open and not solved: after one, where there is one there.

    None where all are solved.
    """
    done = solved(progress)
    if after is None:
        return catalogue.next_slug(done)
    at = catalogue.slugs.index(after) + 1
    for slug in (*catalogue.slugs[at:], *catalogue.slugs[:at]):
        if slug not in done and slug != after and not catalogue.missing(slug, done):
            return slug
    return None if after in done else after


def _step(
    number: int,
    problem: Problem,
    catalogue: Catalogue,
    now: Progress,
    done: set[str],
    coming: str | None,
) -> ProblemProgress:
    missing = catalogue.missing(problem.slug, done)
    mark: Mark = "locked" if missing else "open"
    if now.is_solved or now.is_tried:
        mark = "solved" if now.is_solved else "tried"
    return ProblemProgress(
        number=number,
        problem=problem,
        track=catalogue.track(problem.slug),
        mark=mark,
        missing=missing,
        is_changed=now.is_solved and now.solved_version != problem.content_version,
        is_next=problem.slug == coming,
    )
