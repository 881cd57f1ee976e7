"""Starts a problem: a folder that passes the audit as it is, to be rewritten piece by piece."""

from __future__ import annotations

import re
import tomllib
from difflib import get_close_matches
from pathlib import Path

from shardlab.catalogue.problem_schema import SLUG
from shardlab.catalogue.tracks import load_catalogue
from shardlab.errors import InvalidProblemName, InvalidTracks, ProblemExists, UnknownProblem

_TEMPLATE = Path(__file__).parent / "template"


def new_problem(slug: str, track: str, catalogue: Path) -> Path:
    """Write a new problem's folder, list it in `tracks.toml`, and return it.

    A catalogue that is not there yet is started, and so is a track.
    """
    _check_name("problem", slug)
    _check_name("track", track)
    tracks = catalogue / "tracks.toml"
    text = tracks.read_text("utf-8") if tracks.is_file() else ""
    if text:
        _refuse_taken(slug, track, catalogue)
    folder = catalogue / track / slug
    if folder.exists():
        raise _taken(slug, folder)
    listed = with_problem(text, slug, track)
    for source in sorted(_TEMPLATE.rglob("*.txt")):
        file = folder / source.relative_to(_TEMPLATE).with_suffix("")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_filled(source.read_text("utf-8"), slug), "utf-8")
    tracks.write_text(listed, "utf-8")
    return folder


def with_problem(text: str, slug: str, track: str) -> str:
    """Return the text of a `tracks.toml` with one more problem at the end of a track.

    >>> print(with_problem("", "first", "basics"))
    [[tracks]]
    folder = "basics"
    title = "Basics"
    problems = ["first"]
    <BLANKLINE>
    """
    place = re.search(
        rf'folder = "{re.escape(track)}"[^\[]*?problems = \[([^\]]*)\]', text, re.DOTALL
    )
    known = [each.get("folder") for each in tomllib.loads(text).get("tracks", [])]
    if place is None and track in known:
        raise InvalidTracks(
            f"'{slug}' cannot be added to the list of '{track}'.",
            where="tracks.toml",
            fix="write the track's folder, title and problems in this order.",
        )
    if place is None:
        title = track.replace("-", " ").capitalize()
        table = f'[[tracks]]\nfolder = "{track}"\ntitle = "{title}"\nproblems = ["{slug}"]\n'
        added = f"{text.rstrip()}\n\n{table}" if text.strip() else table
    else:
        before = place[1].rstrip().rstrip(",")
        gap = ("\n    " if "\n" in before else " ") if before.strip() else ""
        end = ",\n" if "\n" in before else ""
        listed = f'{before}{"," if before.strip() else ""}{gap}"{slug}"{end}'
        added = text[: place.start(1)] + listed + text[place.end(1) :]
    return added


def _filled(text: str, slug: str) -> str:
    title = slug.replace("-", " ").capitalize()
    return text.replace("{function}", slug.replace("-", "_")).replace("{title}", title)


def _check_name(kind: str, name: str) -> None:
    if SLUG.fullmatch(name) is None or not (kind == "track" or name[0].isalpha()):
        near = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")
        raise InvalidProblemName(
            f"'{name}' cannot be the name of a {kind}.",
            fix=f"small letters, digits and hyphens, such as {near or 'split-the-rows'}.",
        )


def _refuse_taken(slug: str, track: str, catalogue: Path) -> None:
    found = load_catalogue(catalogue)
    if slug in found.slugs:
        raise _taken(slug, catalogue / found.track(slug).folder / slug)
    known = [each.folder for each in found.tracks]
    near = get_close_matches(track, known, n=1, cutoff=0.8)
    if near and track not in known:
        raise UnknownProblem(
            f"There is no track '{track}'.",
            where=str(catalogue / "tracks.toml"),
            fix=f"'{near[0]}', the nearest name; for a new track, one that is less alike.",
        )


def _taken(slug: str, folder: Path) -> ProblemExists:
    return ProblemExists(
        f"There is a problem '{slug}' already.",
        where=str(folder),
        fix="another name; nothing was written.",
    )
