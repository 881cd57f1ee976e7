"""The source of a submission: read from bytes that may be anything, and quoted by line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardlab.judge.verdict import Verdict

MAX_BYTES = 256 << 10
SUBMISSION_FILE = "submission.py"  # its file name in tracebacks
_MAX_QUOTE = 100


@dataclass(frozen=True)
class SubmissionSource:
    """The text of a submission.

    >>> SubmissionSource("import jax\\ndef f(x):\\n    return x").quote_line(3)
    'line 3: return x'
    """

    text: str

    def quote_line(self, line: int | None) -> str:
        """Return a line's number and text; empty if there is no such line."""
        lines = self.text.splitlines()
        if line is None or not 0 < line <= len(lines):
            return ""
        quote = lines[line - 1].strip()
        return f"line {line}: {_shorten(quote)}" if quote else f"line {line}"

    def find_definition(self, name: str) -> int | None:
        """Return the last line at the top level that defines a name."""
        # A regular expression, because the file need not parse. The last definition wins in Python.
        pattern = re.compile(rf"(async\s+)?def\s+{re.escape(name)}\b|{re.escape(name)}\s*=[^=]")
        lines = enumerate(self.text.splitlines(), 1)
        return max((number for number, line in lines if pattern.match(line)), default=None)


def read_submission(data: bytes) -> SubmissionSource | Verdict:
    """Return the text that bytes hold, or the verdict if they are no submission.

    >>> print(read_submission(b"x = 1\\n\\xff"))
    CE: the submission cannot be loaded
      The file is not UTF-8: byte 0xff cannot be decoded.
      where: line 2
      try:   save it as UTF-8.
    """
    if len(data) > MAX_BYTES:
        return Verdict(
            code="CE",
            what=f"The file has {len(data):,} bytes; the maximum is {MAX_BYTES:,}.",
            fix="do not store data in the file: the judge passes the inputs.",
        )
    if not data.strip():
        return Verdict(
            code="CE", what="The file is empty.", fix="start again from the starter (reset)."
        )
    try:
        # Windows editors write a byte order mark, which Python's compile rejects in a str.
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return Verdict(
            code="CE",
            what=f"The file is not UTF-8: byte 0x{data[error.start]:02x} cannot be decoded.",
            where=f"line {line}",
            fix="save it as UTF-8.",
        )
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        return Verdict(
            code="CE", what="The file contains a NUL byte.", where=f"line {line}", fix="remove it."
        )
    return SubmissionSource(text)


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_QUOTE else f"{text[: _MAX_QUOTE - 4]} ..."
