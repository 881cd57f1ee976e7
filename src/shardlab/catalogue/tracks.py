"""A catalogue: its tracks in order, its problems, and their prerequisites.

`tracks.toml` is the only place for order and prerequisites:

    [[tracks]]
    folder = "c-collectives"
    title = "shard_map and collectives"
    problems = ["shard-map-basics", "shard-map-psum"]

    [prerequisites]
    shard-map-psum = ["shard-map-basics"]
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from shardlab._files.schema import check_fields, read_toml_file
from shardlab._text.nearest import nearest_name
from shardlab.catalogue.problem import Problem, leads_out_of, load_problem
from shardlab.catalogue.problem_schema import TRACK, TRACKS
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
    """The problems of a folder; each is read when it is first used.

    >>> catalogue = load_catalogue()
    >>> catalogue.load_problem("shard-map-psum").title
    'shard_map with psum Collective'
    """

    folder: Path
    tracks: tuple[Track, ...]
    prerequisites: Mapping[str, tuple[str, ...]]
    is_trusted: bool = True  # False for an upload; see `Problem`

    @cached_property
    def slugs(self) -> tuple[str, ...]:
        """Return every slug, in order."""
        return tuple(slug for track in self.tracks for slug in track.slugs)

    @cached_property
    def problems(self) -> Mapping[str, Problem]:
        """Return every problem by its slug, in order."""
        return {
            slug: load_problem(self.folder / track.folder / slug, is_trusted=self.is_trusted)
            for track in self.tracks
            for slug in track.slugs
        }

    def track_of(self, slug: str) -> Track:
        """Return the track of a problem. Raises `UnknownProblem`."""
        for track in self.tracks:
            if slug in track.slugs:
                return track
        raise self._unknown_problem(slug)

    # `problems` would parse every problem.toml, which costs the start-up time of one command.
    def load_problem(self, slug: str) -> Problem:
        """Return one problem without reading any other. Raises `UnknownProblem`."""
        folder = self.folder / self.track_of(slug).folder / slug
        # A server reads all of them once, and then none for a page.
        if "problems" in vars(self):
            return self.problems[slug]
        return load_problem(folder, is_trusted=self.is_trusted)

    def find_slug(self, text: str) -> str:
        """Return the problem whose slug, title or function is or contains `text`.

        >>> load_catalogue().find_slug("NamedSharding (Replicated)")
        'replicated-sharding'

        Raises `UnknownProblem`.
        """
        words = _words(text)
        matches = [slug for slug in self.slugs if words in slug]
        if words in matches or len(matches) == 1:
            return words if words in matches else matches[0]
        if not words:
            raise self._unknown_problem(text)
        if not matches:  # read only now, because it means to read every problem
            matches = self._slugs_by_title_or_function(words)
        if len(matches) == 1:
            return matches[0]
        if not matches:
            raise self._unknown_problem(text)
        raise UnknownProblem(
            f"{len(matches)} problems have '{text}' in their name.",
            where=str(self.folder),
            fix=f"type one of: {', '.join(matches)}.",
        )

    def _slugs_by_title_or_function(self, words: str) -> list[str]:
        """Return the problems whose title or function has these words; one alone if it is equal."""
        names = {
            slug: [_words(name) for name in (problem.title, *(p.function for p in problem.parts))]
            for slug, problem in self.problems.items()
        }
        equal = [slug for slug in names if words in names[slug]]
        return equal or [slug for slug in names if any(words in name for name in names[slug])]

    def missing_prerequisites(self, slug: str, solved: Collection[str]) -> tuple[str, ...]:
        """Return the prerequisites that are not solved yet; empty if the problem is open."""
        prerequisites = self.prerequisites.get(slug, ())
        return tuple(required for required in prerequisites if required not in solved)

    def next_slug(self, solved: Collection[str]) -> str | None:
        """Return the first problem in order that is open and not solved; None after the last."""
        for slug in self.slugs:
            if slug not in solved and not self.missing_prerequisites(slug, solved):
                return slug
        return None

    def _unknown_problem(self, slug: str) -> UnknownProblem:
        match = nearest_name(slug, self.slugs)
        if not self.is_trusted:  # its folder is the server's business
            fix = f"Did you mean '{match}'?" if match else "The list of problems has their names."
            return UnknownProblem(f"Unknown problem '{slug}'.", fix=fix)
        option = "" if self.folder == BUILT_IN_CATALOGUE else f" --catalogue {self.folder}"
        return UnknownProblem(
            f"Unknown problem '{slug}'.",
            where=str(self.folder),
            fix=f"Did you mean '{match}'?"
            if match
            else f"`shardlab practice list{option}` lists them.",
        )


def _words(text: str) -> str:
    """Return a name as slugs are written: `shard_map with psum` is `shard-map-with-psum`."""
    return "-".join(re.findall(r"\w+", text.lower().replace("_", " ")))


def load_catalogue(folder: Path | str | None = None, *, is_trusted: bool = True) -> Catalogue:
    """Return the catalogue in a folder, by default shardlab's own. Loads no NumPy."""
    root = BUILT_IN_CATALOGUE if folder is None else Path(folder)
    file = root / "tracks.toml"
    create = f"`shardlab catalogue new SLUG --track T --catalogue {root}` creates one."
    if not file.is_file():
        raise CatalogueNotFound(
            "The folder is not a catalogue: it has no tracks.toml.", where=str(root), fix=create
        )
    if leads_out_of(file, root):  # an error would quote the private file that it is linked to
        raise InvalidTracks(
            "tracks.toml is a link that leads out of the catalogue's folder.",
            where=str(file),
            fix="replace the link by the file itself.",
        )
    table = read_toml_file(file, InvalidTracks, fix=create)
    data = check_fields(table, TRACKS, str(file), InvalidTracks)
    tracks = tuple(_parse_track(number, row, file) for number, row in enumerate(data["tracks"], 1))
    slugs = [slug for track in tracks for slug in track.slugs]
    for slug in slugs:
        if slugs.count(slug) > 1:
            raise InvalidTracks(
                f"'{slug}' is listed twice.", where=str(file), fix="remove one of them."
            )
    prerequisites = _parse_prerequisites(data.get("prerequisites", {}), slugs, file)
    catalogue = Catalogue(root, tracks, prerequisites, is_trusted)
    _reject_cycles(catalogue, file)
    return catalogue


def _parse_track(number: int, table: Any, file: Path) -> Track:
    where = f"{file}, [[tracks]] number {number}"
    data = check_fields(table, TRACK, where, InvalidTracks)
    folder = file.parent / data["folder"]
    for path in (folder, *(folder / slug for slug in data["problems"])):
        # Resolved: a catalogue is a download, and a link in it could show any file of the user.
        if leads_out_of(path, file.parent):
            raise InvalidTracks(
                f"'{os.path.relpath(path, file.parent)}' is outside of the catalogue's folder.",
                where=where,
                fix="name a folder inside of it, and use no links that lead out of it.",
            )
    for slug in data["problems"]:
        if not (folder / slug / "problem.toml").is_file():
            match = nearest_name(slug, [path.parent.name for path in folder.glob("*/problem.toml")])
            raise InvalidTracks(
                f"'{slug}' is listed, but {data['folder']}/{slug}/problem.toml does not exist.",
                where=str(file),
                fix=f"Did you mean '{match}'?" if match else "remove it from the list.",
            )
    return Track(data["folder"], data["title"], tuple(data["problems"]))


def _parse_prerequisites(table: Any, slugs: list[str], file: Path) -> dict[str, tuple[str, ...]]:
    where = f"{file}, [prerequisites]"
    for slug, required in table.items():
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            message = f"'{slug}' is {required!r:.80}."
            raise InvalidTracks(message, where=where, fix="a list of slugs.")
        for name in (slug, *required):
            if name not in slugs:
                match = nearest_name(name, slugs)
                raise InvalidTracks(
                    f"Unknown problem '{name}'.",
                    where=where,
                    fix=f"Did you mean '{match}'?" if match else "list it in a track first.",
                )
    return {slug: tuple(required) for slug, required in table.items()}


def _reject_cycles(catalogue: Catalogue, file: Path) -> None:
    """Raise `InvalidTracks` if problems require each other, so that none of them can open."""
    solved: set[str] = set()
    # Solving whatever is open reaches every problem exactly when the graph has no cycle.
    while (slug := catalogue.next_slug(solved)) is not None:
        solved.add(slug)
    blocked = [slug for slug in catalogue.slugs if slug not in solved]
    if blocked:
        raise InvalidTracks(
            f"These problems require each other: {', '.join(blocked)}.",
            where=f"{file}, [prerequisites]",
            fix="remove one of the prerequisites.",
        )
