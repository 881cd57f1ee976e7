"""A whole catalogue: its tracks in order, its problems, and what to have solved before each.

`tracks.toml` is the only place for order and prerequisites:

    [[tracks]]
    folder = "c-collectives"
    title = "shard_map and collectives"
    problems = ["shard-map-basics", "shard-map-psum"]

    [prerequisites]
    shard-map-psum = ["shard-map-basics"]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from shardlab._text.nearest import nearest_name
from shardlab.catalogue.problem import Problem, load_problem
from shardlab.catalogue.problem_schema import TRACK, TRACKS, check_table, read_toml
from shardlab.errors import CatalogueNotFound, InvalidTracks, UnknownProblem

BUILT_IN_CATALOGUE = Path(__file__).parent / "problems"


@dataclass(frozen=True)
class Track:
    """Problems that belong together, in order."""

    folder: str
    title: str
    slugs: tuple[str, ...]


@dataclass(frozen=True)
class Catalogue:
    """Problems of a folder; they are read when they are asked for.

    >>> catalogue = load_catalogue()
    >>> catalogue.problem("shard-map-psum").title
    'One global sum'
    """

    folder: Path
    tracks: tuple[Track, ...]
    prerequisites: Mapping[str, tuple[str, ...]]

    @cached_property
    def slugs(self) -> tuple[str, ...]:
        """Return every slug, in order."""
        return tuple(slug for track in self.tracks for slug in track.slugs)

    @cached_property
    def problems(self) -> Mapping[str, Problem]:
        """Return every problem by its slug, in order."""
        return {
            slug: load_problem(self.folder / track.folder / slug)
            for track in self.tracks
            for slug in track.slugs
        }

    def track(self, slug: str) -> Track:
        """Return the track of a problem."""
        for track in self.tracks:
            if slug in track.slugs:
                return track
        raise self._unknown(slug)

    def problem(self, slug: str) -> Problem:
        """Return one problem, and read no other. Raises `UnknownProblem`."""
        return load_problem(self.folder / self.track(slug).folder / slug)

    def missing(self, slug: str, solved: Collection[str]) -> tuple[str, ...]:
        """Return what to solve before a problem and is not solved; empty where it is open."""
        return tuple(s for s in self.prerequisites.get(slug, ()) if s not in solved)

    def next_slug(self, solved: Collection[str]) -> str | None:
        """Return the first problem in order that is open and not solved; None after the last."""
        return next(
            (s for s in self.slugs if s not in solved and not self.missing(s, solved)), None
        )

    def _unknown(self, slug: str) -> UnknownProblem:
        near = nearest_name(slug, self.slugs)
        own = "" if self.folder == BUILT_IN_CATALOGUE else f" --catalogue {self.folder}"
        names = f"`shardlab practice list{own}` names them."
        return UnknownProblem(
            f"There is no problem '{slug}'.",
            where=str(self.folder),
            fix=f"'{near}', the nearest name." if near else names,
        )


def load_catalogue(folder: Path | str | None = None) -> Catalogue:
    """Return the catalogue in a folder; shardlab's own where none is given. Loads no NumPy."""
    place = BUILT_IN_CATALOGUE if folder is None else Path(folder)
    file = place / "tracks.toml"
    if not file.is_file():
        raise CatalogueNotFound(
            "The folder is no catalogue: it has no tracks.toml.",
            where=str(place),
            fix=f"`shardlab catalogue new SLUG --track T --catalogue {place}` starts one.",
        )
    data = check_table(read_toml(file, InvalidTracks), TRACKS, str(file), InvalidTracks)
    tracks = tuple(_track(number, table, file) for number, table in enumerate(data["tracks"], 1))
    slugs = [slug for track in tracks for slug in track.slugs]
    for slug in slugs:
        if slugs.count(slug) > 1:
            raise InvalidTracks(
                f"'{slug}' is listed twice.", where=str(file), fix="keep one of them."
            )
    catalogue = Catalogue(place, tracks, _prerequisites(data.get("prerequisites", {}), slugs, file))
    _refuse_a_circle(catalogue, file)
    return catalogue


def _track(number: int, table: Any, file: Path) -> Track:
    data = check_table(table, TRACK, f"{file}, [[tracks]] number {number}", InvalidTracks)
    for slug in data["problems"]:
        if not (file.parent / data["folder"] / slug / "problem.toml").is_file():
            near = nearest_name(slug, _folders(file.parent / data["folder"]))
            raise InvalidTracks(
                f"'{slug}' is listed, and there is no {data['folder']}/{slug}/problem.toml.",
                where=str(file),
                fix=f"'{near}', the nearest folder." if near else "take it out of the list.",
            )
    return Track(data["folder"], data["title"], tuple(data["problems"]))


def _folders(track: Path) -> list[str]:
    return [each.parent.name for each in track.glob("*/problem.toml")]


def _prerequisites(table: Any, slugs: list[str], file: Path) -> dict[str, tuple[str, ...]]:
    where = f"{file}, [prerequisites]"
    for slug, before in table.items():
        if not isinstance(before, list) or not all(isinstance(each, str) for each in before):
            raise InvalidTracks(f"'{slug}' is {before!r:.80}.", where=where, fix="a list of slugs.")
        for each in (slug, *before):
            if each not in slugs:
                near = nearest_name(each, slugs)
                raise InvalidTracks(
                    f"'{each}' is no problem of this catalogue.",
                    where=where,
                    fix=f"'{near}', the nearest name." if near else "list it in a track first.",
                )
    return {slug: tuple(before) for slug, before in table.items()}


def _refuse_a_circle(catalogue: Catalogue, file: Path) -> None:
    """Raise `InvalidTracks` where a problem needs itself: nobody could ever open it."""
    solved: set[str] = set()
    while (slug := catalogue.next_slug(solved)) is not None:
        solved.add(slug)
    left = [slug for slug in catalogue.slugs if slug not in solved]
    if left:
        raise InvalidTracks(
            f"These problems wait for each other: {', '.join(left)}.",
            where=f"{file}, [prerequisites]",
            fix="take one of the prerequisites away.",
        )
