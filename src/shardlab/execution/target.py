"""What the user names on the command line: `file.py:function`, `module:function`, or a script."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shardlab._text.nearest import nearest_file_name
from shardlab.errors import InvalidTarget, ProgramNotFound
from shardlab.sharding.shape import parse_array
from shardlab.sharding.spec import parse_spec


@dataclass(frozen=True)
class Target:
    """A function of a file or module, or a script.

    >>> parse_target("mypackage.model:step")
    Target(kind='module', location='mypackage.model', function='step')
    """

    kind: Literal["file", "module", "script"]
    location: str  # path of the file, or dotted name of the module
    function: str = ""

    def __str__(self) -> str:
        return f"{self.location}:{self.function}" if self.function else self.location


def parse_target(text: str) -> Target:
    """Return the target that `text` names. A file must exist; a module is looked up later."""
    location, colon, function = text.rpartition(":")
    # A colon may also be part of a path: C:\\models\\step.py, or ./run:2/step.py.
    if not colon or os.sep in function or function.endswith(".py"):
        location, function = text, ""
    if colon and location != text and (not location or not _is_dotted_name(function)):
        raise _invalid_target(text)
    # A file that exists wins over a module of the same name.
    if location.endswith(".py") or os.sep in location or Path(location).is_file():
        _require_file(location, text)
        return Target("file" if function else "script", location, function)
    if not function or not _is_dotted_name(location):
        if not colon and "." not in text and not Path(text).exists():
            _require_file(text, text)
        raise _invalid_target(text)
    return Target("module", location, function)


def check_arguments(target: Target, args: Sequence[str], args_from: str | None) -> None:
    """Reject shapes that cannot be parsed before a process is started.

    The arguments of a script are its own and are not parsed.
    """
    if target.kind == "script":
        if args_from:
            raise InvalidTarget(
                "--args gives the arguments of a function, and this target is a script.",
                where=f"the program {str(target)!r}",
                fix=f"name the function, as in {target.location}:step, or pass the script's own "
                "arguments after --.",
            )
        return
    for text in args:
        shape, separator, spec = text.partition("@")
        parse_array(shape)
        if separator:
            parse_spec(spec)


def parse_reference(text: str, target: Target, no_run: bool) -> Target:
    """Return the function that `--reference` names. A script or a trace has no use for one."""
    reference = parse_target(text)
    if target.kind == "script" or reference.kind == "script" or no_run:
        reason = "--no-run compares no values" if no_run else "both must be functions"
        raise InvalidTarget(
            f"--reference cannot be used here: {reason}.",
            where=f"the program {str(target)!r}, --reference {text}",
            fix="name both functions, as in train.py:step --reference train.py:plain_step.",
        )
    return reference


def _is_dotted_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _invalid_target(text: str) -> InvalidTarget:
    return InvalidTarget(
        f"{text!r} does not name a function of a file.",
        where=f"the program {text!r}",
        fix="write file.py:function, module:function, or file.py for a script.",
    )


def _require_file(location: str, text: str) -> None:
    path = Path(location)
    if path.is_file():
        return
    folder = path.parent if path.parent.is_dir() else Path()
    match = nearest_file_name(path.name, [file.name for file in folder.glob("*.py")])
    is_folder = path.is_dir()
    raise ProgramNotFound(
        f"{location!r} is a folder, not a file." if is_folder else f"No such file: {location!r}.",
        where=f"the program {text!r}, in {os.getcwd()}",
        fix=f"Did you mean {str(path.parent / match)!r}?"
        if match
        else "check the name, or run it from the folder that contains the file.",
    )
