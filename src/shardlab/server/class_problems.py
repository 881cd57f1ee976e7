"""The problems that a class works on: those of the server, and those of its teacher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shardlab.catalogue.tracks import Catalogue, load_catalogue
from shardlab.server.catalogue_keys import column_name
from shardlab.server.people.catalogues import OpenCatalogue
from shardlab.server.settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class ClassProblem:
    """One problem as a column of the matrix."""

    number: int  # within its catalogue
    slug: str
    title: str
    track: str
    column: str  # its name among the problems of all catalogues of the class
    path: str  # of its page


@dataclass(frozen=True, kw_only=True)
class ClassCatalogue:
    """The problems of one catalogue, and its key in the store."""

    key: str
    problems: tuple[ClassProblem, ...]


@dataclass(frozen=True, kw_only=True)
class ClassProblems:
    """All problems of a class, catalogue by catalogue."""

    catalogues: tuple[ClassCatalogue, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the catalogues as the store names them."""
        return tuple(catalogue.key for catalogue in self.catalogues)

    @property
    def problems(self) -> tuple[ClassProblem, ...]:
        return tuple(row for catalogue in self.catalogues for row in catalogue.problems)

    @property
    def by_column(self) -> Mapping[str, ClassProblem]:
        """Return each problem by the name of its column."""
        return {problem.column: problem for problem in self.problems}


def load_class_problems(
    settings: ServerSettings, assigned: Sequence[OpenCatalogue]
) -> ClassProblems:
    """Return the problems of the server, and those of the catalogues that a class was assigned."""
    return ClassProblems(
        catalogues=(
            _load_own(settings.catalogue),
            *(
                _view_catalogue(
                    opened.catalogue,
                    key=opened.key,
                    path=f"/catalogues/{opened.id}/practice",
                    title=opened.title,
                )
                for opened in assigned
            ),
        )
    )


@cache  # a folder does not change while the server runs
def _load_own(folder: str | None) -> ClassCatalogue:
    # As the terminal's workbook does: empty for shardlab's own, and else the absolute path.
    key = "" if folder is None else str(Path(folder).resolve())
    return _view_catalogue(load_catalogue(folder), key=key, path="/practice", title="")


def _view_catalogue(catalogue: Catalogue, *, key: str, path: str, title: str) -> ClassCatalogue:
    """Return a catalogue as columns; `title` is in front of its tracks."""
    return ClassCatalogue(
        key=key,
        problems=tuple(
            ClassProblem(
                number=number,
                slug=slug,
                title=problem.title,
                track=": ".join(filter(None, (title, catalogue.track_of(slug).title))),
                column=column_name(key, slug),
                path=f"{path}/{slug}",
            )
            for number, (slug, problem) in enumerate(catalogue.problems.items(), 1)
        ),
    )
