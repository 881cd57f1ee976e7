"""The requests that workers serve: one dataclass each, with a version.

    tracer     LoadRequest, ExportRequest, SimulateRequest, CallRequest, ScriptRequest,
               DebugPrintRequest, DoctestRequest
    runner     RunRequest
    reference  see `reference_messages`

The judge sends `request.to_frame()`, the worker reads it with `parse_request`, and the judge reads
the response with `request.parse_response`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from shardlab.judge.protocol.reports import (
    PROTOCOL_VERSION,
    ExceptionReport,
    FunctionCall,
    InputArray,
    open_message,
    read_mesh,
)
from shardlab.judge.protocol.responses import (
    CallResponse,
    DebugPrintResponse,
    DoctestResponse,
    Encoded,
    ExportResponse,
    LoadResponse,
    RunResponse,
    ScriptResponse,
    SimulateResponse,
    WorkerResponse,
)
from shardlab.sandbox.fields import Fields
from shardlab.sandbox.frame import Frame, InvalidFrame
from shardlab.sharding.mesh import Mesh

Response = TypeVar("Response")


@dataclass(frozen=True, kw_only=True)
class StackDumps:
    """When a worker prints which line it executes, so that the line is known if a limit ends it.

    `wall_seconds` count from the start of the request, `cpu_seconds` from the start of the process,
    as its limit does. 0: never.
    """

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0


NO_STACK_DUMPS = StackDumps()


@dataclass(frozen=True, kw_only=True)
class WorkerRequest(ABC, Generic[Response]):
    """A request to a worker; its type parameter is the response."""

    message_type: ClassVar[str]
    activity: ClassVar[str]  # what the worker does meanwhile, for messages

    def to_frame(self, stack_dumps: StackDumps = NO_STACK_DUMPS) -> Frame:
        content, buffers = self._encode()
        header = {
            "version": PROTOCOL_VERSION,
            "type": self.message_type,
            "stack_dump_seconds": stack_dumps.wall_seconds,
            "stack_dump_cpu_seconds": stack_dumps.cpu_seconds,
            **content,
        }
        return Frame(header, tuple(buffers))

    @abstractmethod
    def _encode(self) -> Encoded:
        """Return the fields of the request, and its buffers."""

    @classmethod
    @abstractmethod
    def _decode(cls, fields: Fields, buffers: tuple[bytes, ...]) -> WorkerRequest[Response]:
        """Return the request that `_encode` wrote."""

    @abstractmethod
    def parse_response(self, frame: Frame) -> Response:
        """Return the response in a frame. Raises `InvalidFrame`."""

    @abstractmethod
    def error_response(self, error: ExceptionReport) -> WorkerResponse:
        """Return the response that reports an exception instead of a result."""


@dataclass(frozen=True, kw_only=True)
class LoadRequest(WorkerRequest[LoadResponse]):
    """Execute the source of a submission."""

    message_type: ClassVar[str] = "load"
    activity: ClassVar[str] = "importing the submission"
    source: bytes

    def _encode(self) -> Encoded:
        return {}, (self.source,)

    @classmethod
    def _decode(cls, fields: Fields, buffers: tuple[bytes, ...]) -> LoadRequest:
        return cls(source=_single_buffer(buffers))

    def parse_response(self, frame: Frame) -> LoadResponse:
        return LoadResponse.from_frame(frame)

    def error_response(self, error: ExceptionReport) -> LoadResponse:
        return LoadResponse(error=error)


@dataclass(frozen=True, kw_only=True)
class ExportRequest(WorkerRequest[ExportResponse]):
    """Trace a function with shapes alone, and export it. No array is sent: values stay hidden."""

    message_type: ClassVar[str] = "export"
    activity: ClassVar[str] = "tracing the submission"
    call: FunctionCall

    # The packed inputs have shapes and dtypes; buffers with values are left out on purpose.
    def _encode(self) -> Encoded:
        return self.call.encode(), ()

    @classmethod
    def _decode(cls, fields: Fields, buffers: tuple[bytes, ...]) -> ExportRequest:
        return cls(call=FunctionCall.read_fields(fields))

    def parse_response(self, frame: Frame) -> ExportResponse:
        return ExportResponse.from_frame(frame)

    def error_response(self, error: ExceptionReport) -> ExportResponse:
        return ExportResponse(error=error)


@dataclass(frozen=True, kw_only=True)
class SimulateRequest(WorkerRequest[SimulateResponse]):
    """Run a function on virtual devices, for meshes that are larger than the machine."""

    message_type: ClassVar[str] = "simulate"
    activity: ClassVar[str] = "simulating the submission"
    call: FunctionCall
    arrays: tuple[bytes, ...] = ()

    def _encode(self) -> Encoded:
        return self.call.encode(), self.arrays

    @classmethod
    def _decode(cls, fields: Fields, buffers: tuple[bytes, ...]) -> SimulateRequest:
        return cls(call=FunctionCall.read_fields(fields), arrays=buffers)

    def parse_response(self, frame: Frame) -> SimulateResponse:
        return SimulateResponse.from_frame(frame, _mesh_devices(self.call.mesh))

    def error_response(self, error: ExceptionReport) -> SimulateResponse:
        return SimulateResponse(error=error)


@dataclass(frozen=True, kw_only=True)
class CallRequest(WorkerRequest[CallResponse]):
    """Call a function with plain values."""

    message_type: ClassVar[str] = "call"
    activity: ClassVar[str] = "calling the submission"
    call: FunctionCall
    arrays: tuple[bytes, ...] = ()

    def _encode(self) -> Encoded:
        return self.call.encode(), self.arrays

    @classmethod
    def _decode(cls, fields: Fields, buffers: tuple[bytes, ...]) -> CallRequest:
        return cls(call=FunctionCall.read_fields(fields), arrays=buffers)

    def parse_response(self, frame: Frame) -> CallResponse:
        return CallResponse.from_frame(frame)

    def error_response(self, error: ExceptionReport) -> CallResponse:
        return CallResponse(error=error)


@dataclass(frozen=True, kw_only=True)
class ScriptRequest(WorkerRequest[ScriptResponse]):
    """Run a script as `python` does: the worked examples of a problem's page."""

    message_type: ClassVar[str] = "script"
    activity: ClassVar[str] = "running the script"
    source: str

    def _encode(self) -> Encoded:
        return {}, (self.source.encode(),)

    @classmethod
    def _decode(cls, fields: Fields, buffers: tuple[bytes, ...]) -> ScriptRequest:
        return cls(source=_single_buffer(buffers).decode("utf-8"))

    def parse_response(self, frame: Frame) -> ScriptResponse:
        return ScriptResponse.from_frame(frame)

    def error_response(self, error: ExceptionReport) -> ScriptResponse:
        return ScriptResponse(error=error)


@dataclass(frozen=True, kw_only=True)
class DebugPrintRequest(WorkerRequest[DebugPrintResponse]):
    """Run a function for what `jax.debug.print` prints in it, with inputs that may be shown."""

    message_type: ClassVar[str] = "debug_print"
    activity: ClassVar[str] = "printing"
    call: FunctionCall
    arrays: tuple[bytes, ...] = ()

    def _encode(self) -> Encoded:
        return self.call.encode(), self.arrays

    @classmethod
    def _decode(cls, fields: Fields, buffers: tuple[bytes, ...]) -> DebugPrintRequest:
        return cls(call=FunctionCall.read_fields(fields), arrays=buffers)

    def parse_response(self, frame: Frame) -> DebugPrintResponse:
        return DebugPrintResponse.from_frame(frame)

    def error_response(self, error: ExceptionReport) -> DebugPrintResponse:
        return DebugPrintResponse(error=error)


@dataclass(frozen=True, kw_only=True)
class DoctestRequest(WorkerRequest[DoctestResponse]):
    """Run a page's examples with the names of the submission that is loaded."""

    message_type: ClassVar[str] = "doctest"
    activity: ClassVar[str] = "running the examples"
    text: str

    def _encode(self) -> Encoded:
        return {}, (self.text.encode(),)

    @classmethod
    def _decode(cls, fields: Fields, buffers: tuple[bytes, ...]) -> DoctestRequest:
        return cls(text=_single_buffer(buffers).decode("utf-8"))

    def parse_response(self, frame: Frame) -> DoctestResponse:
        return DoctestResponse.from_frame(frame)

    def error_response(self, error: ExceptionReport) -> DoctestResponse:
        return DoctestResponse(error=error)


@dataclass(frozen=True, kw_only=True)
class RunRequest(WorkerRequest[RunResponse]):
    """Run an exported program on the hidden inputs; the only request that contains them."""

    message_type: ClassVar[str] = "run"
    activity: ClassVar[str] = "running the program"
    program: bytes
    mesh: Mesh | None = None
    inputs: tuple[InputArray, ...] = ()
    # Constructs to remove, one at a time, to see whether the program still returns the same.
    probes: tuple[str, ...] = ()

    def _encode(self) -> Encoded:
        inputs = [
            {"shape": list(array.shape), "dtype": array.dtype, "spec": array.spec}
            for array in self.inputs
        ]
        # No function and no argument names: the runner knows nothing about the submission.
        content = {
            "mesh": self.mesh.to_json() if self.mesh else None,
            "inputs": inputs,
            "probes": list(self.probes),
        }
        return content, (self.program, *(array.values for array in self.inputs))

    @classmethod
    def _decode(cls, fields: Fields, buffers: tuple[bytes, ...]) -> RunRequest:
        mesh, arrays = read_mesh(fields), fields.objects("inputs", "input")
        if len(buffers) != 1 + len(arrays):
            raise InvalidFrame("run: the number of inputs and of buffers differ")
        inputs = []
        for array, values in zip(arrays, buffers[1:], strict=True):
            shape, dtype = array.integers("shape"), array.text("dtype")
            inputs.append(
                InputArray(shape=shape, dtype=dtype, spec=array.text("spec"), values=values)
            )
            array.finish()
        probes = fields.texts("probes")
        return cls(program=buffers[0], mesh=mesh, inputs=tuple(inputs), probes=probes)

    def parse_response(self, frame: Frame) -> RunResponse:
        return RunResponse.from_frame(frame, _mesh_devices(self.mesh))

    def error_response(self, error: ExceptionReport) -> RunResponse:
        return RunResponse(error=error)


def _mesh_devices(mesh: Mesh | None) -> tuple[int, ...]:
    """Return the devices of a mesh; without one a program runs on the first device."""
    # Not from the response: which devices exist is known before anything is sent.
    return tuple(mesh.devices) if mesh else (0,)


def _single_buffer(buffers: tuple[bytes, ...]) -> bytes:
    if len(buffers) != 1:
        raise InvalidFrame("a request of one buffer has another number of them")
    return buffers[0]


_REQUESTS: dict[str, type[WorkerRequest[Any]]] = {
    request_class.message_type: request_class
    for request_class in (
        *(LoadRequest, ExportRequest, SimulateRequest, CallRequest),
        *(ScriptRequest, DebugPrintRequest, DoctestRequest, RunRequest),
    )
}


@dataclass(frozen=True)
class ReceivedRequest:
    """A request as a worker receives it."""

    request: WorkerRequest[Any]
    stack_dumps: StackDumps


def parse_request(
    frame: Frame, request_classes: Mapping[str, type[WorkerRequest[Any]]] = _REQUESTS
) -> ReceivedRequest:
    """Return the request in a frame. Raises `InvalidFrame`, also for another protocol version."""
    # From the client, which is trusted, but a worker of another version must not guess.
    message_type = frame.header.get("type")
    if not isinstance(message_type, str) or message_type not in request_classes:
        raise InvalidFrame(f"{message_type!r:.40} is not a request")
    fields = open_message(frame.header, message_type)
    stack_dumps = StackDumps(
        wall_seconds=fields.number("stack_dump_seconds"),
        cpu_seconds=fields.number("stack_dump_cpu_seconds"),
    )
    request = request_classes[message_type]._decode(fields, frame.buffers)
    fields.finish()
    return ReceivedRequest(request, stack_dumps)
