"""The source line of an instruction, from XLA's tables of files, functions and frames."""

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


class StackFrameTables:
    """The tables at the head of a module; older XLA has none, and writes file and line inline."""

    def __init__(self) -> None:
        self._table = ""
        self._texts: dict[str, dict[int, str]] = {name: {} for name in _TABLES[:2]}
        self._fields: dict[str, dict[int, dict[str, int]]] = {name: {} for name in _TABLES[2:]}

    def read_line(self, line: str) -> None:
        """Read one line of the module's head."""
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

    def source_locations(self, attributes: str) -> list[SourceLocation]:
        """Return the source locations in an instruction's metadata, innermost first."""
        match = _FRAME.search(attributes)
        if match and int(match[1]) in self._fields["StackFrames"]:
            return self._stack_locations(int(match[1]))
        file, line = _FILE.search(attributes), _LINE.search(attributes)
        return [SourceLocation(file[1], int(line[1]))] if file and line else []

    def _stack_locations(self, number: int) -> list[SourceLocation]:
        frames = self._fields["StackFrames"]
        # Frames count from 1 and 0 means "no parent", but some versions of XLA write each parent
        # id plus one: then frame 1, which has no parent, has the parent 1.
        first = frames.get(1, {}).get("parent_frame_id", 0)
        offset = 1 if first == 1 else 0
        locations = []
        while number in frames:
            locations.append(self._location(frames[number]["file_location_id"]))
            parent = frames[number].get("parent_frame_id", 0) - offset
            # Parents come before their children; anything else is a cycle in damaged text.
            if parent >= number:
                break
            number = parent
        return locations

    def _location(self, number: int) -> SourceLocation:
        location = self._fields["FileLocations"][number]
        file = self._texts["FileNames"].get(location.get("file_name_id", 0), "<unknown>")
        function = self._texts["FunctionNames"].get(location.get("function_name_id", 0), "")
        return SourceLocation(file, location.get("line", 0), function.rpartition(".<locals>.")[2])


def parse_op_name(attributes: str) -> str:
    """Return the op_name that JAX gives an operation: `jit(f)/jvp()/dot_general`."""
    match = _OP_NAME.search(attributes)
    # XLA joins the names of merged operations with semicolons.
    return match[1].partition(";")[0] if match else ""
