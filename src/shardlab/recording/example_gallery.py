"""The gallery: small programs to record, one file each, with a header of comments.

# title: Data parallel training step
# summary: ...
# mesh: data=4
# kind: pattern
# target: step
"""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from importlib.resources import files
from typing import Any, Literal

_HEADER_LINE = re.compile(r"# (title|summary|mesh|kind|target): (.*)")
_FILE_NAME = re.compile(r"\d+_(\w+)\.py")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GalleryProgram:
    """A program of the gallery; `source` is without its header."""

    slug: str
    title: str
    summary: str
    mesh: str
    kind: Literal["pattern", "hazard"]
    target: str
    source: str

    def to_json(self) -> dict[str, Any]:
        return {**vars(self)}


@cache
def gallery_programs() -> tuple[GalleryProgram, ...]:
    """Return the programs in the order in which they are shown: patterns, then hazards."""
    folder = files("shardlab") / "recording" / "gallery"
    entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    return tuple(
        _read_program(match[1], entry.read_text("utf-8"))
        for entry in entries
        if (match := _FILE_NAME.fullmatch(entry.name))
    )


def find_program(slug: str) -> GalleryProgram | None:
    """Return the program of a slug such as `megatron_mlp`."""
    return next((program for program in gallery_programs() if program.slug == slug), None)


def _read_program(slug: str, text: str) -> GalleryProgram:
    lines = text.splitlines(keepends=True)
    header: dict[str, str] = {}
    key = ""
    while lines and lines[0].startswith("#"):
        line = lines.pop(0).rstrip()
        if match := _HEADER_LINE.fullmatch(line):
            key = match[1]
            header[key] = match[2]
        else:  # the rest of a long summary
            header[key] += f" {line.lstrip('# ')}"
    return GalleryProgram(slug=slug, source="".join(lines), **header)  # type: ignore[arg-type]
