"""Where an instruction comes from: XLA's tables of files, functions and stack frames."""

from __future__ import annotations

import re

from shardlab.findings.source import SourceLocation

_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_ENTRY = re.compile(r"(\d+) (?:\"(.*)\"|\{(.*)\})$")
_FIELD = re.compile(r"(\w+)=(\d+)")
_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_FRAME = re.compile(r"\bstack_frame_id=(\d+)")
_FILE = re.compile(r'\bsource_file="([^"]*)"')
_LINE = re.compile(r"\bsource_line=(\d+)")


class Frames:
    """The tables at the head of a module; older text has none and names file and line in place."""

    def __init__(self) -> None:
        self._table = ""
        self._texts: dict[str, dict[int, str]] = {name: {} for name in _TABLES[:2]}
        self._fields: dict[str, dict[int, dict[str, int]]] = {name: {} for name in _TABLES[2:]}

    def read(self, line: str) -> None:
        """Take in one line of the head."""
        if line in _TABLES:
            self._table = line
            return
        match = _ENTRY.match(line)
        if not match or not self._table:
            return
        number = int(match[1])
        if match[2] is not None:
            self._texts[self._table][number] = match[2]
        else:
            fields = {name: int(value) for name, value in _FIELD.findall(match[3])}
            self._fields[self._table][number] = fields

    def places(self, attributes: str) -> list[SourceLocation]:
        """Return the places in the program that metadata names, innermost first."""
        match = _FRAME.search(attributes)
        if match and int(match[1]) in self._fields["StackFrames"]:
            return self._stack(int(match[1]))
        file, line = _FILE.search(attributes), _LINE.search(attributes)
        return [SourceLocation(file[1], int(line[1]))] if file and line else []

    def _stack(self, number: int) -> list[SourceLocation]:
        frames = self._fields["StackFrames"]
        # XLA counts from 1 and keeps 0 for "no parent", but writes each parent's number plus one.
        first = frames.get(1, {}).get("parent_frame_id", 0)
        offset = 1 if first == 1 else 0
        places = []
        while number in frames:
            places.append(self._place(frames[number]["file_location_id"]))
            parent = frames[number].get("parent_frame_id", 0) - offset
            if parent >= number:
                break
            number = parent
        return places

    def _place(self, number: int) -> SourceLocation:
        where = self._fields["FileLocations"][number]
        file = self._texts["FileNames"].get(where.get("file_name_id", 0), "<unknown>")
        function = self._texts["FunctionNames"].get(where.get("function_name_id", 0), "")
        return SourceLocation(file, where.get("line", 0), function.rpartition(".<locals>.")[2])


def op_name(attributes: str) -> str:
    """Return JAX's own name of an operation: `jit(f)/jvp()/dot_general`."""
    match = _OP_NAME.search(attributes)
    # XLA joins the names of merged operations by semicolons.
    return match[1].partition(";")[0] if match else ""
