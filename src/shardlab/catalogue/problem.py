"""One problem folder: what its `problem.toml` says, and its texts when they are asked for."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

FORMAT_VERSION = 1
Kind = Literal["program", "value"]
_CALL = re.compile(r"(\w+)\(([\w\s,]*)\)")


@dataclass(frozen=True)
class Part:
    """One function to write, and how it is judged.

    `call` is how the judge calls it, arguments in order: `shard_map_psum(x, mesh)`. A `program` is
    traced, exported and run on every mesh of the ladder; a `value` is called with plain values.
    """

    number: int
    name: str
    call: str
    kind: Kind
    axes: tuple[str, ...]  # mesh axes of the ladder; empty: no mesh is passed
    ladder: tuple[str, ...]  # mesh texts in the place of the usual ladder
    large: tuple[str, ...]  # meshes that are simulated; ("usual",) for 64 and 512 devices
    cases: int  # of a value: how many
    requires: tuple[str, ...]  # what must be in the program: shard_map, psum, ...
    budget: Mapping[str, int]
    rtol: float
    atol: float

    @property
    def function(self) -> str:
        return self._called[1]

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the names of the arguments in order, `mesh` among them where it is passed."""
        return tuple(name.strip() for name in self._called[2].split(",") if name.strip())

    @property
    def _called(self) -> re.Match[str]:
        called = _CALL.fullmatch(self.call)
        assert called, self.call
        return called


@dataclass(frozen=True)
class Problem:
    """A problem, and the folder that it lies in."""

    folder: Path
    slug: str
    track: str
    title: str
    difficulty: str
    content_version: int
    tags: tuple[str, ...]
    parts: tuple[Part, ...]
    limits: Mapping[str, float] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """Return one of the folder's files, such as `statement.md`."""
        return (self.folder / name).read_text("utf-8")

    @property
    def wrong(self) -> tuple[Path, ...]:
        return tuple(sorted((self.folder / "wrong").glob("*.py")))

    @cached_property
    def hints(self) -> tuple[str, ...]:
        """Return the hints, each without its heading."""
        pieces = re.split(r"^## .*$", self.text("hints.md"), flags=re.MULTILINE)
        return tuple(piece.strip() for piece in pieces[1:])


def load_problem(folder: Path) -> Problem:
    """Return the problem in a folder. Raises what is wrong with its `problem.toml`."""
    data = tomllib.loads((folder / "problem.toml").read_text("utf-8"))
    parts = tuple(_part(number, part) for number, part in enumerate(data["parts"], 1))
    return Problem(
        folder,
        folder.name,
        folder.parent.name,
        data["title"],
        data["difficulty"],
        data["content_version"],
        tuple(data.get("tags", ())),
        parts,
        data.get("limits", {}),
    )


def _part(number: int, data: Mapping[str, Any]) -> Part:
    return Part(
        number,
        data.get("name", ""),
        data["call"],
        data.get("kind", "program"),
        tuple(data.get("axes", ())),
        tuple(data.get("ladder", ())),
        tuple(data.get("large", ("usual",))),
        data.get("cases", 6),
        tuple(data.get("requires", ())),
        data.get("budget", {}),
        data.get("rtol", 1e-5),
        data.get("atol", 1e-5),
    )
