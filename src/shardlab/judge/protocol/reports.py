"""What the messages of several workers contain: exceptions, findings, function calls, inputs.

Every `read` function raises `InvalidFrame` for what is unknown, missing, of another type or out of
range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardlab.errors import LabError
from shardlab.findings.finding import Finding
from shardlab.sandbox.fields import Fields
from shardlab.sandbox.frame import InvalidFrame
from shardlab.sharding.mesh import Mesh

PROTOCOL_VERSION = 2
# Increase it with every change of a message: pool and workers may be of two installations.
MAX_LINE = (1 << 31) - 1
_SEVERITIES = ("error", "warning", "info")


def open_message(header: Mapping[str, Any], message_type: str) -> Fields:
    """Return the fields of a message after its version and its type are checked."""
    fields = Fields(header, message_type)
    if fields.integer("version") != PROTOCOL_VERSION:
        raise InvalidFrame(f"{message_type}: another version of the protocol")
    if fields.value("type") != message_type:
        raise InvalidFrame(f"another message than {message_type!r}")
    return fields


@dataclass(frozen=True, kw_only=True)
class ExceptionReport:
    """An exception of a worker: its type and message, the submission's line, what it means.

    `family` names the known mistakes, for programs; `what` and `fix` explain them, for users.
    """

    exception_type: str = "Exception"
    message: str = ""
    line: int | None = None
    base_types: tuple[str, ...] = ()  # the names of its class and all base classes
    family: str = ""
    what: str = ""
    fix: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "base_types": list(self.base_types)}

    @classmethod
    def read_optional(cls, fields: Fields) -> ExceptionReport | None:
        error = fields.optional_object("error", "error")
        if error is None:
            return None
        report = cls(
            exception_type=error.text("exception_type"),
            message=error.text("message"),
            line=error.optional_integer("line", MAX_LINE),
            base_types=error.texts("base_types"),
            family=error.text("family"),
            what=error.text("what"),
            fix=error.text("fix"),
        )
        error.finish()
        return report


@dataclass(frozen=True, kw_only=True)
class FindingReport:
    """A finding of the checks about a traced program, as far as verdicts use it."""

    code: str
    severity: str
    what: str
    fix: str = ""
    cause: str = ""
    line: int | None = None
    shows: tuple[str, ...] = ()

    @classmethod
    def from_finding(cls, finding: Finding) -> FindingReport:
        return cls(
            code=finding.code,
            severity=finding.severity,
            what=finding.what,
            fix=finding.fix,
            cause=finding.cause,
            # The file is always the submission; what the judge shows is the line.
            line=(finding.where.line or None) if finding.where else None,
            shows=finding.shows,
        )

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "shows": list(self.shows)}

    @classmethod
    def read_list(cls, fields: Fields) -> tuple[FindingReport, ...]:
        return tuple(cls._read(finding) for finding in fields.objects("findings", "finding"))

    @classmethod
    def _read(cls, fields: Fields) -> FindingReport:
        report = cls(
            code=fields.text("code"),
            severity=fields.text("severity"),
            what=fields.text("what"),
            fix=fields.text("fix"),
            cause=fields.text("cause"),
            line=fields.optional_integer("line", MAX_LINE),
            shows=fields.texts("shows"),
        )
        fields.finish()
        if report.severity not in _SEVERITIES:
            raise InvalidFrame("finding: an unknown severity")
        return report


@dataclass(frozen=True, kw_only=True)
class FunctionCall:
    """A call of one of the submission's functions. The arrays themselves travel as buffers."""

    function: str
    argument_names: tuple[str, ...]  # in order, `mesh` among them if it is passed
    packed_inputs: Mapping[str, Any]  # see `pack_value`
    mesh: Mesh | None = None
    input_specs: tuple[str, ...] = ()  # one for each array; empty: all are replicated

    def encode(self) -> dict[str, Any]:
        return {
            "function": self.function,
            "argument_names": list(self.argument_names),
            "packed_inputs": dict(self.packed_inputs),
            "mesh": self.mesh.to_json() if self.mesh else None,
            "input_specs": list(self.input_specs),
        }

    @classmethod
    def read_fields(cls, fields: Fields) -> FunctionCall:
        packed_inputs = fields.value("packed_inputs")
        if not isinstance(packed_inputs, dict):
            raise InvalidFrame("'packed_inputs' is not an object")
        return cls(
            function=fields.text("function"),
            argument_names=fields.texts("argument_names"),
            packed_inputs=packed_inputs,
            mesh=read_mesh(fields),
            input_specs=fields.texts("input_specs"),
        )


@dataclass(frozen=True, kw_only=True)
class InputArray:
    """One input of an exported program: how it is sharded, and its values."""

    shape: tuple[int, ...]
    dtype: str
    spec: str
    values: bytes


def read_mesh(fields: Fields) -> Mesh | None:
    data = fields.value("mesh")
    if data is None:
        return None
    try:
        # Mesh checks names and sizes itself; any other type fails in one of these ways.
        return Mesh.from_json(data)
    except (LabError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidFrame("'mesh' is not a mesh") from error
