"""The problems that a class works on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shardlab.catalogue.tracks import load_catalogue
from shardlab.server.settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class ClassProblem:
    """One problem as a column of the matrix."""

    number: int
    slug: str
    title: str
    track: str


@dataclass(frozen=True, kw_only=True)
class ClassCatalogue:
    """The problems of a class, and the key of their catalogue in the store."""

    key: str
    problems: tuple[ClassProblem, ...]

    @property
    def titles(self) -> Mapping[str, str]:
        """Return the title of each problem, by slug."""
        return {problem.slug: problem.title for problem in self.problems}


def load_class_catalogue(settings: ServerSettings) -> ClassCatalogue:
    """Return the catalogue of the server."""
    return _load(settings.catalogue)


@cache  # a folder does not change while the server runs
def _load(folder: str | None) -> ClassCatalogue:
    catalogue = load_catalogue(folder)
    return ClassCatalogue(
        # As the terminal's workbook does: empty for shardlab's own, and else the absolute path.
        key="" if folder is None else str(Path(folder).resolve()),
        problems=tuple(
            ClassProblem(
                number=number,
                slug=slug,
                title=problem.title,
                track=catalogue.track_of(slug).title,
            )
            for number, (slug, problem) in enumerate(catalogue.problems.items(), 1)
        ),
    )
