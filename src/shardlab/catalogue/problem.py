"""One problem folder: the settings of its `problem.toml`, and its texts."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from shardlab._files.schema import check_fields, read_toml_file
from shardlab.catalogue.problem_schema import BUDGET, CALL, LIMITS, PART, PROBLEM
from shardlab.errors import InvalidProblem

Kind = Literal["program", "value"]
# Beside problem.toml and the known-wrong submissions, which have a folder of their own.
PROBLEM_FILES = ("statement.md", "hints.md", "starter.py", "solution.py", "reference.py")
# Shown on every page that has a program to write.
_TRACING_NOTE = """\
The judge traces the function as `jax.jit` does: array arguments have a shape and a dtype, and no
values yet. NumPy, `float()` or an `if` on them raise."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One function to write, and how it is judged.

    `call` is how the judge calls it, arguments in order: `shard_map_psum(x, mesh)`. A `program` is
    traced, exported and run on every test mesh; a `value` is called with plain values.
    """

    number: int
    name: str
    call: str
    kind: Kind
    axes: tuple[str, ...]  # axis names of the default test meshes; empty: no mesh is passed
    meshes: tuple[str, ...]  # test meshes instead of the default ones
    # A host can run about 8 devices; larger meshes are simulated.
    simulated_meshes: tuple[str, ...]  # simulated meshes; ("usual",) for 64 and 512 devices
    cases: int  # number of cases of a value
    requires: tuple[str, ...]  # must be in the program: shard_map, psum, ...
    budget: Mapping[str, int]
    rtol: float
    atol: float

    @property
    def function(self) -> str:
        return self._call_match[1]

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the names of the arguments in order, including `mesh` if it is passed."""
        names = (self._call_match[2] or "").split(",")
        return tuple(name.strip() for name in names if name.strip())

    @property
    def _call_match(self) -> re.Match[str]:
        match = CALL.fullmatch(self.call)
        assert match, self.call
        return match


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A problem and its folder."""

    folder: Path
    slug: str
    track: str
    title: str
    difficulty: str
    content_version: int
    tags: tuple[str, ...]
    parts: tuple[Part, ...]
    limits: Mapping[str, float] = field(default_factory=dict)
    # False for an upload: its reference.py is executed in a sandboxed process only.
    is_trusted: bool = True

    @property
    def page(self) -> str:
        """Return the page as learners read it, with the note on tracing if there is a program.

        The note is added here because each `statement.md` is about its own task only.
        """
        statement = self.read_text("statement.md")
        if all(part.kind == "value" for part in self.parts):
            return statement
        # Before the examples, where it follows the description of inputs and output.
        before, heading, after = statement.partition("\n## Examples\n")
        return f"{before}\n{_TRACING_NOTE}\n{heading}{after}"

    def read_text(self, name: str) -> str:
        """Return one of the folder's files, such as `statement.md`."""
        path = self.folder / name
        with contextlib.suppress(OSError):  # the checks below say why
            status = path.stat()
            # Any other file in its place, also one that a link leads to, has another identity.
            identity = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
            return _read_text(path, self.folder, identity)
        _reject_link(path, self.folder)
        return path.read_text("utf-8")

    @property
    def wrong_submissions(self) -> tuple[Path, ...]:
        """Return the files of the known-wrong submissions."""
        paths = tuple(sorted((self.folder / "wrong").glob("*.py")))
        for path in paths:
            _reject_link(path, self.folder)
        return paths

    @cached_property
    def hints(self) -> tuple[str, ...]:
        """Return the hints, each without its heading."""
        sections = re.split(r"^## .*$", self.read_text("hints.md"), flags=re.MULTILINE)
        # What precedes the first heading is not a hint.
        return tuple(section.strip() for section in sections[1:])


@lru_cache(maxsize=512)
def _read_text(path: Path, folder: Path, identity: tuple[int, ...]) -> str:
    """Return a text; a server reads it once, and again after it was edited."""
    _reject_link(path, folder)
    return path.read_text("utf-8")


def load_problem(folder: Path, *, is_trusted: bool = True) -> Problem:
    """Return the problem in a folder; none of its code is executed. Raises `InvalidProblem`."""
    file = folder / "problem.toml"
    _reject_link(file, folder)  # an error would quote the private file that it is linked to
    fix = "`shardlab catalogue new SLUG` creates a folder with every file."
    table = read_toml_file(file, InvalidProblem, fix=fix)
    data = check_fields(table, PROBLEM, str(file), InvalidProblem)
    limits = check_fields(data.get("limits", {}), LIMITS, str(file), InvalidProblem, "[limits]")
    parts = tuple(_parse_part(number, part, file) for number, part in enumerate(data["parts"], 1))
    for name in PROBLEM_FILES:
        if not (folder / name).is_file():
            raise InvalidProblem(
                f"The problem has no {name}.",
                where=str(folder),
                fix=f"write it; a problem has {', '.join(PROBLEM_FILES)} and wrong/*.py.",
            )
        _reject_link(folder / name, folder)
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
        is_trusted=is_trusted,
    )


def leads_out_of(path: Path, folder: Path) -> bool:
    """Return whether a path ends outside of a folder, after all links and dots in it."""
    # Not Path.resolve, which raises for links that form a circle.
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _reject_link(path: Path, folder: Path) -> None:
    """Raise `InvalidProblem` for a file that is a link to somewhere else.

    A catalogue is a download: a solution that is linked to a private file would show it.
    """
    if leads_out_of(path, folder):
        raise InvalidProblem(
            f"{path.name} is a link that leads out of the problem's folder.",
            where=str(path),
            fix="replace the link by the file itself.",
        )


def _parse_part(number: int, table: Any, file: Path) -> Part:
    where = f"{file}, [[parts]] number {number}"
    data = check_fields(table, PART, where, InvalidProblem)
    budget = check_fields(data.get("budget", {}), BUDGET, where, InvalidProblem, "budget")
    part = Part(
        number=number,
        name=data.get("name", ""),
        call=data["call"],
        kind=data.get("kind", "program"),
        axes=tuple(data.get("axes", ())),
        meshes=tuple(data.get("meshes", ())),
        simulated_meshes=tuple(data.get("simulated_meshes", ("usual",))),
        cases=data.get("cases", 6),
        requires=tuple(data.get("requires", ())),
        budget=budget,
        rtol=data.get("rtol", 1e-5),
        atol=data.get("atol", 1e-5),
    )
    _check_combination(part, data, where)
    return part


def _check_combination(part: Part, data: Mapping[str, Any], where: str) -> None:
    """Raise `InvalidProblem` for keys that are valid alone but not together."""
    has_mesh = "mesh" in part.arguments
    if part.kind == "value":
        unused_keys = ["axes", "meshes", "simulated_meshes", "requires", "budget"]
        reason = "is of kind 'value'"
    elif not has_mesh:
        unused_keys = ["cases", "meshes", "simulated_meshes"]
        # The names of the mesh that the submission makes itself.
        unused_keys += [] if "mesh_axes" in part.requires else ["axes"]
        reason = f"has no `mesh` in {part.call}"
    else:
        unused_keys = ["cases"]
        reason = "runs on several meshes"
    for key in unused_keys:
        if key in data:
            message = f"'{key}' has no meaning for a part that {reason}."
            raise InvalidProblem(message, where=where, fix="remove it.")
    if part.kind == "value" and has_mesh:
        message = f"{part.call} is of kind 'value', which gets no mesh."
        fix = "use another name, such as mesh_shape, for a dict."
        raise InvalidProblem(message, where=where, fix=fix)
    if "mesh_axes" in part.requires and (has_mesh or not part.axes):
        message = f"'mesh_axes' needs 'axes', and no `mesh` in {part.call}."
        raise InvalidProblem(message, where=where, fix='axes = ["data"], or remove it.')
    if has_mesh and not part.axes and not (part.meshes and "simulated_meshes" in data):
        message = f"{part.call} gets a mesh, and 'axes' is missing."
        raise InvalidProblem(message, where=where, fix='axes = ["data"], or two names.')
