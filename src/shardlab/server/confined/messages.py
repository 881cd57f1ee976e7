"""The request to a confined lab process, and its response.

What a process sends is not trusted: the program that it ran shares its interpreter. So a response
is read with exact types and limits, its result is JSON, and nothing is unpickled.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from shardlab.judge.protocol.requests import NO_STACK_DUMPS, StackDumps
from shardlab.sandbox.fields import Fields
from shardlab.sandbox.frame import Frame, InvalidFrame

MESSAGE_VERSION = 1  # of both; increase it with every change
PROGRAM_FILE = "program.py"  # the person's program in tracebacks
MAX_RESULT_BYTES = 8 << 20  # of JSON; the same as the sandbox's limit for a response
_MAX_MESSAGE = 8000
_MAX_LINE = (1 << 31) - 1


@dataclass(frozen=True, kw_only=True)
class ConfinedRequest:
    """One piece of work: its kind, and its payload as JSON."""

    kind: str
    payload: dict[str, Any]
    stack_dumps: StackDumps = NO_STACK_DUMPS

    def to_frame(self) -> Frame:
        header = {
            "version": MESSAGE_VERSION,
            "kind": self.kind,
            "stack_dump_seconds": self.stack_dumps.wall_seconds,
            "stack_dump_cpu_seconds": self.stack_dumps.cpu_seconds,
        }
        return Frame(header, (json.dumps(self.payload).encode(),))

    @classmethod
    def from_frame(cls, frame: Frame) -> ConfinedRequest:
        """Return the request in a frame. Raises `InvalidFrame`."""
        fields = _open_fields(frame, "request", n_buffers=1)
        request = cls(
            kind=fields.text("kind"),
            payload=json.loads(frame.buffers[0]),
            stack_dumps=StackDumps(
                wall_seconds=fields.number("stack_dump_seconds"),
                cpu_seconds=fields.number("stack_dump_cpu_seconds"),
            ),
        )
        fields.finish()
        return request


@dataclass(frozen=True, kw_only=True)
class ProgramError:
    """Why there is no result, in words for the person who wrote the program."""

    kind: str
    message: str
    line: int | None = None
    fix: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind[:40],
            "message": self.message[:_MAX_MESSAGE],
            "line": self.line,
            "fix": self.fix[:_MAX_MESSAGE],
        }


@dataclass(frozen=True, kw_only=True)
class ConfinedResponse:
    """The result as JSON text, or the error."""

    result: bytes = field(default=b"", repr=False)
    error: ProgramError | None = None

    def to_frame(self) -> Frame:
        error = self.error.to_json() if self.error else None
        return Frame({"version": MESSAGE_VERSION, "error": error}, (self.result,))

    @classmethod
    def from_frame(cls, frame: Frame) -> ConfinedResponse:
        """Return the response in a frame. Raises `InvalidFrame`."""
        fields = _open_fields(frame, "response", n_buffers=1)
        error = fields.optional_object("error", "error")
        fields.finish()
        if error is None:
            return cls(result=frame.buffers[0])
        program_error = ProgramError(
            kind=error.text("kind", 40),
            message=error.text("message", _MAX_MESSAGE),
            line=error.optional_integer("line", _MAX_LINE),
            fix=error.text("fix", _MAX_MESSAGE),
        )
        error.finish()
        return cls(error=program_error)


def _open_fields(frame: Frame, name: str, *, n_buffers: int) -> Fields:
    fields = Fields(frame.header, name)
    if fields.integer("version") != MESSAGE_VERSION:
        raise InvalidFrame(f"{name}: another version of the protocol")
    if len(frame.buffers) != n_buffers:
        raise InvalidFrame(f"{name}: another number of buffers")
    return fields
