"""What a person points at: `file.py:function`, `module:function`, or a whole script.

A model that a person's own file makes: `file.py:make_model`, asked of a process of its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from shardlab.errors import InvalidTarget, ProgramNotFound


@dataclass(frozen=True)
class Target:
    """A function of a file or module, or a script.

    >>> parse_target("mypackage.model:step")
    Target(kind='module', place='mypackage.model', function='step')
    """

    kind: Literal["file", "module", "script"]
    place: str
    function: str = ""

    def __str__(self) -> str:
        return f"{self.place}:{self.function}" if self.function else self.place


def parse_target(text: str) -> Target:
    """Return what `text` points at; a file must be there."""
    place, colon, function = text.rpartition(":")
    if not colon or os.sep in function or function.endswith(".py"):
        place, function = text, ""
    if colon and place != text and (not place or not _is_name(function)):
        raise _bad(text)
    if place.endswith(".py") or os.sep in place or Path(place).is_file():
        _check_file(place, text)
        return Target("file" if function else "script", place, function)
    if not function or not _is_name(place):
        if not colon and "." not in text and not Path(text).exists():
            _check_file(text, text)
        raise _bad(text)
    return Target("module", place, function)


def _is_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _bad(text: str) -> InvalidTarget:
    return InvalidTarget(
        f"{text!r} does not say which function of which file.",
        where=f"the program {text!r}",
        fix="write file.py:function, module:function, or file.py for a whole script.",
    )


def _check_file(place: str, text: str) -> None:
    path = Path(place)
    if path.is_file():
        return
    folder = path.parent if path.parent.is_dir() else Path()
    names = [each.name for each in folder.glob("*.py")]
    close = get_close_matches(path.name, names, n=1)
    raise ProgramNotFound(
        f"{place!r} is a folder, not a file." if path.is_dir() else f"There is no file {place!r}.",
        where=f"the program {text!r}, in {os.getcwd()}",
        fix=f"did you mean {str(path.parent / close[0])!r}?"
        if close
        else "check the name, or run it from the folder that it is in.",
    )


def check_args(target: Target, args: Sequence[str], args_from: str | None) -> None:
    """Refuse shapes that cannot be read before anything is started; a script's are its own."""
    from shardlab.sharding.shape import parse_array
    from shardlab.sharding.spec import parse_spec

    if target.kind == "script":
        if args_from:
            raise InvalidTarget(
                "--args gives the arguments of a function, and this is a whole script.",
                where=f"the program {str(target)!r}",
                fix=f"name the function, as in {target.place}:step, or pass the script's own "
                "arguments after --.",
            )
        return
    for text in args:
        shape, at, spec = text.partition("@")
        parse_array(shape)
        if at:
            parse_spec(spec)


def make_job(
    command: str, target: Target, args: Sequence[str], args_from: str | None, **others: Any
) -> dict[str, Any]:
    """Return what the worker is told."""
    check_args(target, args, args_from)
    return {
        "command": command,
        "shown": f"shardlab {command} {target}",
        "kind": target.kind,
        "place": target.place,
        "function": target.function,
        "args": list(args),
        "args_from": args_from,
        **others,
    }
