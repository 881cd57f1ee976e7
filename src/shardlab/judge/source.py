"""The source of an answer: read from bytes that may be anything, and quoted by line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardlab.judge.verdict import Verdict

MAX_BYTES = 256 << 10


@dataclass(frozen=True)
class SubmissionSource:
    """The text of an answer.

    >>> SubmissionSource("import jax\\ndef f(x):\\n    return x").place(3)
    'line 3: return x'
    """

    text: str

    def place(self, line: object) -> str:
        """Return a line's number and text; nothing where there is no such line."""
        lines = self.text.splitlines()
        if type(line) is not int or not 0 < line <= len(lines):
            return ""
        quoted = lines[line - 1].strip()
        return f"line {line}: {_short(quoted)}" if quoted else f"line {line}"

    def definition(self, name: str) -> int | None:
        """Return the last line at which a name is given a meaning at the top level."""
        pattern = re.compile(rf"(async\s+)?def\s+{re.escape(name)}\b|{re.escape(name)}\s*=[^=]")
        lines = enumerate(self.text.splitlines(), 1)
        return max((number for number, line in lines if pattern.match(line)), default=None)


def read_submission(data: bytes) -> SubmissionSource | Verdict:
    """Return the text that bytes hold, or why they are no answer.

    >>> print(read_submission(b"x = 1\\n\\xff"))
    CE  The file is not UTF-8: byte 0xff cannot be read.
      where: line 2
      try:   save it as UTF-8.
    """
    if len(data) > MAX_BYTES:
        return Verdict(
            code="CE",
            what=f"The file has {len(data):,} bytes; at most {MAX_BYTES:,} are read.",
            fix="keep data out of the file: the judge passes the inputs.",
        )
    if not data.strip():
        return Verdict(
            code="CE", what="The file is empty.", fix="start again from the starter (reset)."
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return Verdict(
            code="CE",
            what=f"The file is not UTF-8: byte 0x{data[error.start]:02x} cannot be read.",
            where=f"line {line}",
            fix="save it as UTF-8.",
        )
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        return Verdict(
            code="CE", what="The file has a NUL byte in it.", where=f"line {line}", fix="remove it."
        )
    return SubmissionSource(text)


def _short(text: str, most: int = 100) -> str:
    return text if len(text) <= most else f"{text[: most - 4]} ..."
