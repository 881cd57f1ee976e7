"""One problem folder: what its `problem.toml` says, and its texts when they are asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from shardlab.catalogue.problem_schema import (
    BUDGET,
    CALL,
    LIMITS,
    PART,
    PROBLEM,
    check_table,
    read_toml,
)
from shardlab.errors import InvalidProblem

Kind = Literal["program", "value"]
# Beside problem.toml and the wrong answers, which have a folder of their own.
PROBLEM_FILES = ("statement.md", "hints.md", "starter.py", "solution.py", "reference.py")
# On every page that has a program to write.
_TRACED = """\
The judge traces the function as `jax.jit` does: array arguments have a shape and a dtype, and no
values yet. NumPy, `float()` or an `if` on them raise."""


@dataclass(frozen=True, kw_only=True)
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
        return tuple(name.strip() for name in (self._called[2] or "").split(",") if name.strip())

    @property
    def _called(self) -> re.Match[str]:
        called = CALL.fullmatch(self.call)
        assert called, self.call
        return called


@dataclass(frozen=True, kw_only=True)
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

    @property
    def page(self) -> str:
        """Return the page as a person reads it; a program's says how it is judged, before the end.

        The sentence stands here and not in each `statement.md`, which is about its own task.
        """
        statement = self.text("statement.md")
        if all(part.kind == "value" for part in self.parts):
            return statement
        before, heading, after = statement.partition("\n## Examples\n")
        return f"{before}\n{_TRACED}\n{heading}{after}"

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
    """Return the problem in a folder. Raises `InvalidProblem` for what is wrong with it."""
    file = folder / "problem.toml"
    data = check_table(read_toml(file, InvalidProblem), PROBLEM, str(file), InvalidProblem)
    limits = check_table(data.get("limits", {}), LIMITS, f"{file}, [limits]", InvalidProblem)
    parts = tuple(_part(number, part, file) for number, part in enumerate(data["parts"], 1))
    for name in PROBLEM_FILES:
        if not (folder / name).is_file():
            raise InvalidProblem(
                f"The problem has no {name}.",
                where=str(folder),
                fix=f"write it; a problem has {', '.join(PROBLEM_FILES)} and wrong/*.py.",
            )
    return Problem(
        folder=folder,
        slug=folder.name,
        track=folder.parent.name,
        title=data["title"],
        difficulty=data["difficulty"],
        content_version=data["content_version"],
        tags=tuple(data.get("tags", ())),
        parts=parts,
        limits=limits,
    )


def _part(number: int, table: Any, file: Path) -> Part:
    where = f"{file}, [[parts]] number {number}"
    data = check_table(table, PART, where, InvalidProblem)
    part = Part(
        number=number,
        name=data.get("name", ""),
        call=data["call"],
        kind=data.get("kind", "program"),
        axes=tuple(data.get("axes", ())),
        ladder=tuple(data.get("ladder", ())),
        large=tuple(data.get("large", ("usual",))),
        cases=data.get("cases", 6),
        requires=tuple(data.get("requires", ())),
        budget=check_table(data.get("budget", {}), BUDGET, f"{where}, budget", InvalidProblem),
        rtol=data.get("rtol", 1e-5),
        atol=data.get("atol", 1e-5),
    )
    _check_sense(part, data, where)
    return part


def _check_sense(part: Part, data: Mapping[str, Any], where: str) -> None:
    """Raise `InvalidProblem` for keys that are right alone and say nothing together."""
    has_mesh = "mesh" in part.arguments
    if part.kind == "value":
        needless = ["axes", "ladder", "large", "requires", "budget"]
        why = "is of kind 'value'"
    elif not has_mesh:
        needless = ["cases", "axes", "ladder", "large"]
        why = f"has no `mesh` in {part.call}"
    else:
        needless = ["cases"]
        why = "runs on a ladder of meshes"
    for key in needless:
        if key in data:
            what = f"'{key}' has no meaning for a part that {why}."
            raise InvalidProblem(what, where=where, fix="leave it out.")
    if part.kind == "value" and has_mesh:
        what = f"{part.call} is of kind 'value', which is given no mesh."
        raise InvalidProblem(what, where=where, fix="another name, such as mesh_shape, for a dict.")
    if has_mesh and not part.axes and not (part.ladder and "large" in data):
        what = f"{part.call} is given a mesh, and 'axes' is missing."
        raise InvalidProblem(what, where=where, fix='axes = ["data"], or two names.')
