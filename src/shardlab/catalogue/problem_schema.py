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


@dataclass(frozen=True)
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
    "format_version": Setting("1", lambda v: v == 1, "of this format", True),
    "content_version": Setting(
        "a whole number from 1",
        lambda v: _is_count(v, 1),
        "goes up when the task changes, so that old submissions are known as such",
        True,
    ),
    "title": Setting("text", _is_text, "as it is listed; the page begins with it", True),
    "difficulty": Setting("easy, medium or hard", lambda v: v in DIFFICULTIES, "as listed", True),
    "tags": Setting("a list of texts", _texts(), "what the problem is about"),
    "limits": Setting("a table", lambda v: isinstance(v, Mapping), "other limits than the usual"),
    "parts": Setting(
        "one table [[parts]] for each function",
        lambda v: isinstance(v, list) and len(v) > 0,
        "what is judged, in order",
        True,
    ),
}

PART = {
    "name": Setting("text", _is_text, "shown beside the cases of this part"),
    "call": Setting(
        "a call such as f(x, mesh)",
        _is_call,
        "function and arguments in order; a name is a key of the reference's inputs, "
        "`mesh` is the case's mesh",
        True,
    ),
    "kind": Setting(
        "program or value",
        lambda v: v in KINDS,
        "a program is traced and run on devices, a value is called with plain values",
    ),
    "axes": Setting(
        "a list of one or two mesh axis names",
        lambda v: _texts()(v) and 1 <= len(v) <= 2,
        "mesh axes of the usual ladder",
    ),
    "ladder": Setting(
        'a list of meshes such as ["data=2", "data=4 permuted"]',
        _texts(_is_mesh),
        "meshes in the place of the usual ladder",
    ),
    "large": Setting(
        'a list of meshes such as ["data=64"]',
        _texts(_is_mesh),
        "simulated meshes in the place of 64 and 512 devices; [] for none",
    ),
    "cases": Setting("a whole number from 1", lambda v: _is_count(v, 1), "how many, of a value"),
    "requires": Setting(
        f"a list of shard_map, {', '.join(COLLECTIVES)}, check_vma",
        _texts(lambda v: v in ("shard_map", "check_vma", *COLLECTIVES)),
        "what must be in the program; absent: API",
    ),
    "budget": Setting(
        "a table", lambda v: isinstance(v, Mapping), "what may be sent and held; beyond: COMM, MEM"
    ),
    "rtol": Setting("a number from 0", _is_number, "allowed difference, of the largest value"),
    "atol": Setting("a number from 0", _is_number, "allowed difference"),
}

BUDGET = {
    **{
        name: Setting("a whole number", _is_count, f"how often {name} may run")
        for name in COLLECTIVES
    },
    "calls": Setting("a whole number", _is_count, "collectives of all kinds together"),
    "payload_bytes": Setting(
        "a whole number", _is_count, "bytes that a device hands to collectives"
    ),
    "wire_bytes": Setting("a whole number", _is_count, "bytes that a device sends"),
    "peak_bytes": Setting("a whole number", _is_count, "bytes that a device holds at once"),
    "eager_bytes": Setting(
        "a whole number", _is_count, "bytes of an array made whole on one device, outside of a jit"
    ),
}

LIMITS = {
    "wall_seconds": Setting(
        "a number", _is_number, "by the clock, for the whole answer; usually 60"
    ),
    "cpu_seconds": Setting("a number", _is_number, "of processor time; usually 20"),
    "memory_bytes": Setting("a whole number", _is_count, "of the answer's process"),
}

TRACKS = {
    "tracks": Setting(
        "one table [[tracks]] for each track",
        lambda v: isinstance(v, list),
        "tracks in the order in which they are listed",
        True,
    ),
    "prerequisites": Setting(
        "a table", lambda v: isinstance(v, Mapping), "slug = [slugs to have solved before it]"
    ),
}

TRACK = {
    "folder": Setting("the name of a folder", _is_text, "where its problems are", True),
    "title": Setting("text", _is_text, "as it is listed", True),
    "problems": Setting(
        "a list of slugs such as ['split-the-rows']",
        _texts(_is_slug),
        "folders of its problems, in order",
        True,
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
