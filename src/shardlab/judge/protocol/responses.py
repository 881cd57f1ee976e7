"""The responses of workers: one dataclass for each request.

They come from processes that run untrusted code: whatever is unknown, missing, of another type or
out of range is an `InvalidFrame`. What passes is well-formed, not true; docs/judge.md says which
fields a verdict relies on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shardlab.collectives.program_flow import ProgramFlow
from shardlab.judge.protocol.reports import (
    MAX_LINE,
    PROTOCOL_VERSION,
    ExceptionReport,
    FindingReport,
    open_message,
)
from shardlab.judge.protocol.run_result import (
    RunResult,
    encode_flow,
    read_flow,
    read_run_result,
)
from shardlab.judge.protocol.values import ArrayLeaf, array_from_buffer, unpack_value
from shardlab.sandbox.fields import Fields
from shardlab.sandbox.frame import Frame, InvalidFrame

MAX_PRINTED = 1 << 20
# Of jax.debug.print, in one case.
MAX_PRINTING_DEVICES, MAX_DEVICE_CHARACTERS = 16, 2000
MAX_PLACE, _MAX_DEVICE_COUNT = 200, 1 << 20
_NO_FLOW = ProgramFlow()
Encoded = tuple[dict[str, Any], Sequence[bytes]]  # the fields of a message, and its buffers


@dataclass(frozen=True, kw_only=True)
class WorkerResponse(ABC):
    """What every response may have: the exception that was raised instead of a result."""

    message_type: ClassVar[str]
    error: ExceptionReport | None = None

    def to_frame(self) -> Frame:
        content, buffers = self._encode()
        header = {
            "version": PROTOCOL_VERSION,
            "type": self.message_type,
            "error": self.error.to_json() if self.error else None,
            **content,
        }
        return Frame(header, tuple(buffers))

    @abstractmethod
    def _encode(self) -> Encoded:
        """Return the other fields, and the buffers."""


@dataclass(frozen=True, kw_only=True)
class LoadResponse(WorkerResponse):
    """The names that a submission defines."""

    message_type: ClassVar[str] = "loaded"
    defined_names: tuple[str, ...] = ()

    def _encode(self) -> Encoded:
        return {"defined_names": list(self.defined_names)}, ()

    @classmethod
    def from_frame(cls, frame: Frame) -> LoadResponse:
        fields, error = _open_response(frame, cls.message_type, max_buffers=0)
        response = cls(error=error, defined_names=fields.texts("defined_names"))
        fields.finish()
        return response


@dataclass(frozen=True, kw_only=True)
class ExportResponse(WorkerResponse):
    """A traced submission: findings, facts of the trace, and the program unless it is rejected."""

    message_type: ClassVar[str] = "exported"
    program: bytes = b""
    findings: tuple[FindingReport, ...] = ()
    flow: ProgramFlow = _NO_FLOW
    n_unchecked: int = 0  # shard_maps with check_vma=False
    eager_bytes: int = 0
    has_debug_calls: bool = False  # jax.debug.print, jax.debug.callback

    def _encode(self) -> Encoded:
        content = {
            "findings": [finding.to_json() for finding in self.findings],
            "flow": encode_flow(self.flow),
            "n_unchecked": self.n_unchecked,
            "eager_bytes": self.eager_bytes,
            "has_debug_calls": self.has_debug_calls,
        }
        # No buffer at all if there is no program: an empty one would look like a program.
        return content, (self.program,) if self.program else ()

    @classmethod
    def from_frame(cls, frame: Frame) -> ExportResponse:
        fields, error = _open_response(frame, cls.message_type, max_buffers=1)
        response = cls(
            error=error,
            program=frame.buffers[0] if frame.buffers else b"",
            findings=FindingReport.read_list(fields),
            flow=read_flow(fields),
            n_unchecked=fields.integer("n_unchecked"),
            eager_bytes=fields.integer("eager_bytes"),
            has_debug_calls=fields.boolean("has_debug_calls"),
        )
        fields.finish()
        return response


@dataclass(frozen=True, kw_only=True)
class SimulateResponse(WorkerResponse):
    """A run on virtual devices, with the findings about it; no result if it was stopped."""

    message_type: ClassVar[str] = "simulated"
    result: RunResult | None = None
    findings: tuple[FindingReport, ...] = ()
    n_unchecked: int = 0
    has_debug_calls: bool = False

    def _encode(self) -> Encoded:
        result, buffers = self.result.encode() if self.result else (None, ())
        content = {
            "result": result,
            "findings": [finding.to_json() for finding in self.findings],
            "n_unchecked": self.n_unchecked,
            "has_debug_calls": self.has_debug_calls,
        }
        return content, buffers

    @classmethod
    def from_frame(cls, frame: Frame, devices: Sequence[int]) -> SimulateResponse:
        fields, error = _open_response(frame, cls.message_type)
        response = cls(
            error=error,
            result=_read_optional_result(fields, frame, devices),
            findings=FindingReport.read_list(fields),
            n_unchecked=fields.integer("n_unchecked"),
            has_debug_calls=fields.boolean("has_debug_calls"),
        )
        fields.finish()
        return response


@dataclass(frozen=True, kw_only=True)
class RunResponse(WorkerResponse):
    """A run of an exported program on host devices."""

    message_type: ClassVar[str] = "run"
    result: RunResult | None = None

    def _encode(self) -> Encoded:
        # `is_checked` and `eager_bytes` are not sent: the runner cannot know them.
        result, buffers = self.result.encode() if self.result else (None, ())
        return {"result": result}, buffers

    @classmethod
    def from_frame(cls, frame: Frame, devices: Sequence[int]) -> RunResponse:
        fields, error = _open_response(frame, cls.message_type)
        result = _read_optional_result(fields, frame, devices)
        fields.finish()
        # The runner has no findings, so a run without result and error would say nothing.
        if (result is None) == (error is None):
            raise InvalidFrame("a run has either a result or an error")
        return cls(error=error, result=result)


@dataclass(frozen=True, kw_only=True)
class CallResponse(WorkerResponse):
    """The plain value that a function returned."""

    message_type: ClassVar[str] = "called"
    packed_value: Any = None
    buffers: tuple[bytes, ...] = ()

    def _encode(self) -> Encoded:
        return {"packed_value": self.packed_value}, self.buffers

    @classmethod
    def from_frame(cls, frame: Frame) -> CallResponse:
        fields, error = _open_response(frame, cls.message_type)
        response = cls(
            error=error, packed_value=fields.value("packed_value"), buffers=frame.buffers
        )
        fields.finish()
        # Now and not when it is used: an invalid value must fail as an invalid response does.
        if error is None:
            response.value()  # checks all of it
        return response

    def value(self) -> Any:
        """Return the value. Raises `InvalidFrame` if it is not one."""
        unused = set(range(len(self.buffers)))

        def read_array(leaf: ArrayLeaf) -> Any:
            # A reference to one array in a thousand places is small in the frame, and large as soon
            # as the places become arrays. So each buffer may be used once.
            if leaf.number not in unused:
                raise InvalidFrame("an array is missing, or used twice")
            unused.remove(leaf.number)
            return array_from_buffer(leaf, self.buffers[leaf.number])

        return unpack_value(self.packed_value, read_array)


@dataclass(frozen=True, kw_only=True)
class ScriptResponse(WorkerResponse):
    """What a script printed."""

    message_type: ClassVar[str] = "script_output"
    printed: str = ""

    def _encode(self) -> Encoded:
        return {"printed": self.printed}, ()

    @classmethod
    def from_frame(cls, frame: Frame) -> ScriptResponse:
        fields, error = _open_response(frame, cls.message_type, max_buffers=0)
        response = cls(error=error, printed=fields.text("printed", MAX_PRINTED))
        fields.finish()
        return response


@dataclass(frozen=True, kw_only=True)
class DeviceText:
    """What one device has printed; `place` is its coordinate, empty outside of a shard_map."""

    place: str
    text: str
    is_truncated: bool = False

    @classmethod
    def read_fields(cls, fields: Fields) -> DeviceText:
        device_text = cls(
            place=fields.text("place", MAX_PLACE),
            text=fields.text("text", MAX_DEVICE_CHARACTERS),
            is_truncated=fields.boolean("is_truncated"),
        )
        fields.finish()
        return device_text


@dataclass(frozen=True, kw_only=True)
class DebugPrintResponse(WorkerResponse):
    """What `jax.debug.print` has printed by device, and what a callback raised. No verdict."""

    message_type: ClassVar[str] = "debug_printed"
    devices: tuple[DeviceText, ...] = ()
    n_devices: int = 0  # that printed, also those that are left out

    def _encode(self) -> Encoded:
        return {"devices": [vars(text) for text in self.devices], "n_devices": self.n_devices}, ()

    @classmethod
    def from_frame(cls, frame: Frame) -> DebugPrintResponse:
        fields, error = _open_response(frame, cls.message_type, max_buffers=0)
        response = cls(
            error=error,
            devices=tuple(
                DeviceText.read_fields(device)
                for device in fields.objects("devices", "device", MAX_PRINTING_DEVICES)
            ),
            n_devices=fields.integer("n_devices", _MAX_DEVICE_COUNT),
        )
        fields.finish()
        return response


@dataclass(frozen=True, kw_only=True)
class DoctestFailure:
    """One example that returned or raised something else than expected."""

    line: int
    source: str
    expected: str
    actual: str

    @classmethod
    def read_fields(cls, fields: Fields) -> DoctestFailure:
        failure = cls(
            line=fields.integer("line", MAX_LINE),
            source=fields.text("source"),
            expected=fields.text("expected"),
            actual=fields.text("actual"),
        )
        fields.finish()
        return failure


@dataclass(frozen=True, kw_only=True)
class DoctestResponse(WorkerResponse):
    """How many examples there are, and those that failed."""

    message_type: ClassVar[str] = "doctest_result"
    n_examples: int = 0
    failures: tuple[DoctestFailure, ...] = ()

    def _encode(self) -> Encoded:
        failures = [vars(failure) for failure in self.failures]
        return {"n_examples": self.n_examples, "failures": failures}, ()

    @classmethod
    def from_frame(cls, frame: Frame) -> DoctestResponse:
        fields, error = _open_response(frame, cls.message_type, max_buffers=0)
        response = cls(
            error=error,
            n_examples=fields.integer("n_examples"),
            failures=tuple(
                DoctestFailure.read_fields(failure)
                for failure in fields.objects("failures", "failure")
            ),
        )
        fields.finish()
        return response


def _open_response(
    frame: Frame, message_type: str, max_buffers: int | None = None
) -> tuple[Fields, ExceptionReport | None]:
    """Return the fields of a response after version, type and error are read and checked."""
    fields = open_message(frame.header, message_type)
    if max_buffers is not None and len(frame.buffers) > max_buffers:
        raise InvalidFrame(f"{message_type}: more than {max_buffers} buffers")
    return fields, ExceptionReport.read_optional(fields)


def _read_optional_result(fields: Fields, frame: Frame, devices: Sequence[int]) -> RunResult | None:
    result_fields = fields.optional_object("result", "result")
    if result_fields is None:
        if frame.buffers:
            raise InvalidFrame("there are buffers without a result")
        return None
    result = read_run_result(result_fields, frame.buffers, devices)
    result_fields.finish()
    return result
