"""A candidate edit: which spans of a source are replaced by which text, and in which words."""

from __future__ import annotations

import ast
import dataclasses
import difflib
from collections.abc import Iterable

from shardlab.fixes.program_source import ProgramSource


@dataclasses.dataclass(frozen=True)
class Replacement:
    """New text for the bytes from `start` to `end` of a file."""

    start: int
    end: int
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class CandidateEdit:
    """One edit that may fix a program.

    `is_identity` says that on one device the edit cannot change a value: a psum over an axis of
    size 1, another spec. Only such an edit can fix a program that JAX rejects, because it has no
    result on one device to compare with.
    """

    family: str
    what: str
    line: int
    replacements: tuple[Replacement, ...]
    is_identity: bool = True

    @property
    def size(self) -> int:
        """Return how much text the edit removes and adds."""
        return sum(len(item.text) + item.end - item.start for item in self.replacements)

    def apply(self, source: ProgramSource) -> str:
        """Return the text after the edit."""
        data = source.data
        # From the end of the file to its start, so that the spans before stay valid.
        for item in sorted(self.replacements, key=lambda item: item.start, reverse=True):
            data = data[: item.start] + item.text.encode() + data[item.end :]
        return data.decode()


def replace_node(source: ProgramSource, node: ast.AST, text: str) -> Replacement:
    return Replacement(*source.span(node), text)


def wrap_node(
    source: ProgramSource, node: ast.AST, before: str, after: str
) -> tuple[Replacement, ...]:
    """Return two insertions around a node, which keep every comment inside it."""
    start, end = source.span(node)
    return Replacement(start, start, before), Replacement(end, end, after)


def unified_diff(old: str, new: str, file: str) -> str:
    """Return the difference of two sources as `git apply` reads it.

    >>> print(unified_diff("a = 1\\nb = 2\\n", "a = 1\\nb = 3\\n", "step.py"), end="")
    --- a/step.py
    +++ b/step.py
    @@ -1,2 +1,2 @@
     a = 1
    -b = 2
    +b = 3
    """
    # Absolute paths have no place below a/ and b/.
    names = (file, file) if file.startswith(("/", "..")) else (f"a/{file}", f"b/{file}")
    lines = difflib.unified_diff(_lines(old), _lines(new), *names)
    return "".join(_with_final_break(line) for line in lines)


def _lines(text: str) -> list[str]:
    # str.splitlines would also break at form feeds, which are inside lines of Python.
    return [line.decode() for line in text.encode().splitlines(keepends=True)]


def _with_final_break(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def smallest_first(edits: Iterable[CandidateEdit]) -> list[CandidateEdit]:
    return sorted(edits, key=lambda edit: (edit.size, edit.line))
