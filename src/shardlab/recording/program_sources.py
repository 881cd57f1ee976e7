"""The person's own files of a program, the frames in them, and the variables their lines assign."""

from __future__ import annotations

import ast
import linecache
import os
import sysconfig
from collections.abc import Iterable, Sequence

from shardlab import _jax
from shardlab.recording.recording import SourceFile

_SHARDLAB = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"] + os.sep
_MAX_SOURCE_CHARACTERS = 200_000

RawFrame = tuple[str, int, str]  # file name, line, function


class ProgramSources:
    """The files whose lines a recording names, numbered in the order in which they occur."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._lines: dict[str, list[str]] = {}
        self._targets: dict[str, dict[int, tuple[str, ...]]] = {}
        self._is_own: dict[str, bool] = {}

    def is_own(self, file: str) -> bool:
        """Return whether a file is the person's: no library, not shardlab, with a source text."""
        if file not in self._is_own:
            path = os.path.abspath(file)
            is_library = (
                path.startswith((_SHARDLAB, _STANDARD_LIBRARY))
                or f"{os.sep}site-packages{os.sep}" in path
                or f"{os.sep}dist-packages{os.sep}" in path
            )
            self._is_own[file] = (
                not is_library and _jax.is_user_file(file) and bool(self._read_lines(file))
            )
        return self._is_own[file]

    def own_frames(self, frames: Iterable[RawFrame]) -> tuple[tuple[int, int, str], ...]:
        """Return the frames in the person's files, with the number of the file."""
        return tuple(
            (self.number(file), line, function)
            for file, line, function in frames
            if self.is_own(file)
        )

    def number(self, file: str) -> int:
        """Return the index of a file among `files`."""
        return self._numbers.setdefault(file, len(self._numbers))

    def find_number(self, file: str) -> int:
        """Return the index of a file, or -1 if no step is in it."""
        return self._numbers.get(file, -1)

    def line_text(self, number: int, line: int) -> str:
        """Return the text of a line, stripped."""
        names = list(self._numbers)
        lines = self._read_lines(names[number]) if 0 <= number < len(names) else []
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""

    def assigned_names(self, number: int, line: int) -> tuple[str, ...]:
        """Return the variables that the statement at a line assigns; empty if it assigns none."""
        names = list(self._numbers)
        if not 0 <= number < len(names):
            return ()
        file = names[number]
        if file not in self._targets:
            self._targets[file] = _assignment_targets("".join(self._read_lines(file)))
        return self._targets[file].get(line, ())

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """Return the files with their text; a notebook cell or a path is named by its last part."""
        return tuple(
            SourceFile(
                os.path.basename(file), "".join(self._read_lines(file))[:_MAX_SOURCE_CHARACTERS]
            )
            for file in self._numbers
        )

    def _read_lines(self, file: str) -> list[str]:
        # linecache also has the cells of a notebook and of a program that is only text.
        if file not in self._lines:
            self._lines[file] = linecache.getlines(file)
        return self._lines[file]


def _assignment_targets(text: str) -> dict[int, tuple[str, ...]]:
    """Return the names that are assigned, by every line of the statement that assigns them."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    targets: dict[int, tuple[str, ...]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            names = _target_names(node.targets[0])
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
            names = _target_names(node.target)
        else:
            continue
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            targets[line] = names
    return targets


def _target_names(target: ast.expr) -> tuple[str, ...]:
    parts: Sequence[ast.expr] = (
        target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    )
    names = tuple(part.id for part in parts if isinstance(part, ast.Name))
    return names if len(names) == len(parts) else ()
