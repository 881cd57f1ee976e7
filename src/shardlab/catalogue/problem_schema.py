"""The keys of `problem.toml` and `tracks.toml`: what may stand in each, and what it means.

Tables, so that the loader, its messages and the page that explains the format share their words.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardlab._text.nearest import nearest_name
from shardlab.errors import CatalogueError, LabError
from shardlab.sharding.mesh import parse_mesh

DIFFICULTIES = ("easy", "medium", "hard")
KINDS = ("program", "value")
COLLECTIVES = ("psum", "pmax", "pmin", "all_gather", "psum_scatter", "all_to_all", "ppermute")
CALL = re.compile(r"(\w+)\((\w+(?:, ?\w+)*)?\)")
SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One key: what must stand there, in words and as a question, and what it is for."""

    wanted: str
    fits: Callable[[Any], bool]
    meaning: str
    is_required: bool = False


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_count(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def _texts(is_one: Callable[[str], bool] = _is_text) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(_is_text(v) and is_one(v) for v in value)


def _is_mesh(text: str) -> bool:
    try:
        parse_mesh(text.removesuffix(" permuted"))
    except LabError:
        return False
    return True


def _is_call(value: Any) -> bool:
    return isinstance(value, str) and CALL.fullmatch(value) is not None


def _is_slug(text: str) -> bool:
    return SLUG.fullmatch(text) is not None


PROBLEM = {
    "format_version": Setting(
        wanted="1", fits=lambda v: v == 1, meaning="of this format", is_required=True
    ),
    "content_version": Setting(
        wanted="a whole number from 1",
        fits=lambda v: _is_count(v, 1),
        meaning="goes up when the task changes, so that old submissions are known as such",
        is_required=True,
    ),
    "title": Setting(
        wanted="text",
        fits=_is_text,
        meaning="as it is listed; the page begins with it",
        is_required=True,
    ),
    "difficulty": Setting(
        wanted="easy, medium or hard",
        fits=lambda v: v in DIFFICULTIES,
        meaning="as listed",
        is_required=True,
    ),
    "tags": Setting(wanted="a list of texts", fits=_texts(), meaning="what the problem is about"),
    "limits": Setting(
        wanted="a table",
        fits=lambda v: isinstance(v, Mapping),
        meaning="other limits than the usual",
    ),
    "parts": Setting(
        wanted="one table [[parts]] for each function",
        fits=lambda v: isinstance(v, list) and len(v) > 0,
        meaning="what is judged, in order",
        is_required=True,
    ),
}

PART = {
    "name": Setting(wanted="text", fits=_is_text, meaning="shown beside the cases of this part"),
    "call": Setting(
        wanted="a call such as f(x, mesh)",
        fits=_is_call,
        meaning="function and arguments in order; a name is a key of the reference's inputs, "
        "`mesh` is the case's mesh",
        is_required=True,
    ),
    "kind": Setting(
        wanted="program or value",
        fits=lambda v: v in KINDS,
        meaning="a program is traced and run on devices, a value is called with plain values",
    ),
    "axes": Setting(
        wanted="a list of one or two mesh axis names",
        fits=lambda v: _texts()(v) and 1 <= len(v) <= 2,
        meaning="mesh axes of the usual ladder",
    ),
    "ladder": Setting(
        wanted='a list of meshes such as ["data=2", "data=4 permuted"]',
        fits=_texts(_is_mesh),
        meaning="meshes in the place of the usual ladder",
    ),
    "large": Setting(
        wanted='a list of meshes such as ["data=64"]',
        fits=_texts(_is_mesh),
        meaning="simulated meshes in the place of 64 and 512 devices; [] for none",
    ),
    "cases": Setting(
        wanted="a whole number from 1",
        fits=lambda v: _is_count(v, 1),
        meaning="how many, of a value",
    ),
    "requires": Setting(
        wanted=f"a list of shard_map, {', '.join(COLLECTIVES)}, check_vma",
        fits=_texts(lambda v: v in ("shard_map", "check_vma", *COLLECTIVES)),
        meaning="what must be in the program; absent: API",
    ),
    "budget": Setting(
        wanted="a table",
        fits=lambda v: isinstance(v, Mapping),
        meaning="what may be sent and held; beyond: COMM, MEM",
    ),
    "rtol": Setting(
        wanted="a number from 0",
        fits=_is_number,
        meaning="allowed difference, of the largest value",
    ),
    "atol": Setting(wanted="a number from 0", fits=_is_number, meaning="allowed difference"),
}

BUDGET = {
    **{
        name: Setting(wanted="a whole number", fits=_is_count, meaning=f"how often {name} may run")
        for name in COLLECTIVES
    },
    "calls": Setting(
        wanted="a whole number", fits=_is_count, meaning="collectives of all kinds together"
    ),
    "payload_bytes": Setting(
        wanted="a whole number", fits=_is_count, meaning="bytes that a device hands to collectives"
    ),
    "wire_bytes": Setting(
        wanted="a whole number", fits=_is_count, meaning="bytes that a device sends"
    ),
    "peak_bytes": Setting(
        wanted="a whole number", fits=_is_count, meaning="bytes that a device holds at once"
    ),
    "eager_bytes": Setting(
        wanted="a whole number",
        fits=_is_count,
        meaning="bytes of an array made whole on one device, outside of a jit",
    ),
}

LIMITS = {
    "wall_seconds": Setting(
        wanted="a number", fits=_is_number, meaning="by the clock, for the whole answer; usually 60"
    ),
    "cpu_seconds": Setting(
        wanted="a number", fits=_is_number, meaning="of processor time; usually 20"
    ),
    "memory_bytes": Setting(
        wanted="a whole number", fits=_is_count, meaning="of the answer's process"
    ),
}

TRACKS = {
    "tracks": Setting(
        wanted="one table [[tracks]] for each track",
        fits=lambda v: isinstance(v, list),
        meaning="tracks in the order in which they are listed",
        is_required=True,
    ),
    "prerequisites": Setting(
        wanted="a table",
        fits=lambda v: isinstance(v, Mapping),
        meaning="slug = [slugs to have solved before it]",
    ),
}

TRACK = {
    "folder": Setting(
        wanted="the name of a folder",
        fits=_is_text,
        meaning="where its problems are",
        is_required=True,
    ),
    "title": Setting(wanted="text", fits=_is_text, meaning="as it is listed", is_required=True),
    "problems": Setting(
        wanted="a list of slugs such as ['split-the-rows']",
        fits=_texts(_is_slug),
        meaning="folders of its problems, in order",
        is_required=True,
    ),
}


def read_toml(file: Path, kind: type[CatalogueError]) -> dict[str, Any]:
    """Return what a TOML file holds; raise `kind` where it is none."""
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise kind(
            f"{file.name} cannot be read: {error.strerror}.",
            where=str(file),
            fix="`shardlab catalogue new SLUG` starts a folder with every file.",
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise kind(f"{file.name} is not TOML: {error}.", where=str(file), fix="mend it.") from None


def check_table(
    data: Any,
    known: Mapping[str, Setting],
    where: str,
    kind: type[CatalogueError],
) -> Mapping[str, Any]:
    """Return a table whose keys and values are all as its settings want them."""
    if not isinstance(data, Mapping):
        raise kind(f"{data!r:.80} is not a table.", where=where, fix="write a table.")
    for key, value in data.items():
        if key not in known:
            raise kind(f"There is no key '{key}' here.", where=where, fix=_other(key, [*known]))
        if not known[key].fits(value):
            what = f"'{key}' is {value!r:.200}."
            raise kind(what, where=where, fix=f"{known[key].wanted}.")
    for key, setting in known.items():
        if setting.is_required and key not in data:
            what = f"'{key}' is missing."
            raise kind(what, where=where, fix=f"{key} = {setting.wanted}.")
    return data


def _other(name: str, known: Sequence[str]) -> str:
    near = nearest_name(name, known)
    return f"'{near}', the nearest name." if near else f"one of {', '.join(known)}."
