"""Creates a problem: a folder that passes the audit as it is, to be rewritten step by step."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from shardlab._text.nearest import nearest_name
from shardlab.catalogue.problem_schema import SLUG
from shardlab.catalogue.tracks import load_catalogue
from shardlab.errors import InvalidProblemName, InvalidTracks, ProblemExists, UnknownProblem

_TEMPLATE = Path(__file__).parent / "template"


def new_problem(slug: str, track: str, catalogue: Path) -> Path:
    """Write a new problem's folder, list it in `tracks.toml`, and return the folder.

    A catalogue or a track that does not exist is created.
    """
    _check_name("problem", slug)
    _check_name("track", track)
    tracks = catalogue / "tracks.toml"
    text = tracks.read_text("utf-8") if tracks.is_file() else ""
    if text:
        _check_catalogue(slug, track, catalogue)
    folder = catalogue / track / slug
    if folder.exists():
        raise _problem_exists(slug, folder)
    # Computed before anything is written, because it may raise.
    tracks_text = add_to_tracks(text, slug, track)
    # The template has the suffix .txt so that linters and packaging do not take it for code.
    for source in sorted(_TEMPLATE.rglob("*.txt")):
        file = folder / source.relative_to(_TEMPLATE).with_suffix("")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_fill_template(source.read_text("utf-8"), slug), "utf-8")
    tracks.write_text(tracks_text, "utf-8")
    return folder


def add_to_tracks(text: str, slug: str, track: str) -> str:
    """Return the text of a `tracks.toml` with a problem added at the end of a track.

    The text is edited, not written anew, so that comments and formatting survive.

    >>> print(add_to_tracks("", "first", "basics"))
    [[tracks]]
    folder = "basics"
    title = "Basics"
    problems = ["first"]
    <BLANKLINE>
    """
    match = re.search(
        rf'folder = "{re.escape(track)}"[^\[]*?problems = \[([^\]]*)\]', text, re.DOTALL
    )
    tracks = [table.get("folder") for table in tomllib.loads(text).get("tracks", [])]
    if match is None and track in tracks:
        raise InvalidTracks(
            f"'{slug}' cannot be added to the list of '{track}'.",
            where="tracks.toml",
            fix="write the track's folder, title and problems in this order.",
        )
    if match is None:
        title = track.replace("-", " ").capitalize()
        table = f'[[tracks]]\nfolder = "{track}"\ntitle = "{title}"\nproblems = ["{slug}"]\n'
        return f"{text.rstrip()}\n\n{table}" if text.strip() else table
    before = match[1].rstrip().rstrip(",")
    separator = ("\n    " if "\n" in before else " ") if before.strip() else ""
    end = ",\n" if "\n" in before else ""
    problems = f'{before}{"," if before.strip() else ""}{separator}"{slug}"{end}'
    return text[: match.start(1)] + problems + text[match.end(1) :]


def _fill_template(text: str, slug: str) -> str:
    title = slug.replace("-", " ").capitalize()
    return text.replace("{function}", slug.replace("-", "_")).replace("{title}", title)


def _check_name(kind: str, name: str) -> None:
    if SLUG.fullmatch(name) is None or not (kind == "track" or name[0].isalpha()):
        suggestion = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")
        raise InvalidProblemName(
            f"'{name}' is not a valid name of a {kind}.",
            fix=f"use lowercase letters, digits and hyphens: {suggestion or 'split-the-rows'}.",
        )


def _check_catalogue(slug: str, track: str, folder: Path) -> None:
    """Reject a problem that exists, and a track that is probably a typing error."""
    catalogue = load_catalogue(folder)
    if slug in catalogue.slugs:
        raise _problem_exists(slug, folder / catalogue.track_of(slug).folder / slug)
    tracks = [entry.folder for entry in catalogue.tracks]
    match = nearest_name(track, tracks)
    # A new track may resemble another ("a-layout", "b-layout"); a typing error keeps the first
    # letter and adds or drops at most one.
    is_slip = match and match[0] == track[0] and abs(len(match) - len(track)) <= 1
    if is_slip and track not in tracks:
        raise UnknownProblem(
            f"Unknown track '{track}'.",
            where=str(folder / "tracks.toml"),
            fix=f"Did you mean '{match}'? For a new track, choose a name that differs more.",
        )


def _problem_exists(slug: str, folder: Path) -> ProblemExists:
    return ProblemExists(
        f"The problem '{slug}' exists already.",
        where=str(folder),
        fix="choose another name; nothing was written.",
    )
