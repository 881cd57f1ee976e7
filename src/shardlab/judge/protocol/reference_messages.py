"""The requests to a reference process, and its responses.

    LoadReferenceRequest   source of reference.py -> the functions that it defines for each part
    CallReferenceRequest   a function, a mesh, inputs -> what the function returns

The process executes code of an uploaded catalogue, so a response is read as strictly as that of a
tracer: exact types, limits, arrays as raw buffers, nothing unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from shardlab.judge.protocol.reports import ExceptionReport, open_message, read_mesh
from shardlab.judge.protocol.requests import ReceivedRequest, WorkerRequest, parse_request
from shardlab.judge.protocol.responses import Encoded, WorkerResponse
from shardlab.judge.protocol.values import ArrayLeaf, array_from_buffer, unpack_value
from shardlab.sandbox.fields import Fields
from shardlab.sandbox.frame import Frame, InvalidFrame
from shardlab.sharding.mesh import Mesh

ReferenceFunction = Literal[
    "inputs", "expected", "input_specs", "output_specs", "budget", "properties", "accepts"
]
REFERENCE_FUNCTIONS: tuple[ReferenceFunction, ...] = get_args(ReferenceFunction)
_MAX_SCALE, _MAX_NUMBER = 100, 1 << 31


@dataclass(frozen=True, kw_only=True)
class LoadReferenceResponse(WorkerResponse):
    """The functions that `reference.py` defines, for each part in order."""

    message_type: ClassVar[str] = "reference_loaded"
    functions: tuple[tuple[str, ...], ...] = ()

    def _encode(self) -> Encoded:
        return {"functions": [{"names": list(names)} for names in self.functions]}, ()

    @classmethod
    def from_frame(cls, frame: Frame, n_parts: int) -> LoadReferenceResponse:
        fields = open_message(frame.header, cls.message_type)
        error = ExceptionReport.read_optional(fields)
        functions = []
        for part in fields.objects("functions", "functions of a part"):
            functions.append(part.texts("names"))
            part.finish()
        fields.finish()
        names = {name for part_names in functions for name in part_names}
        if frame.buffers or not names <= {*REFERENCE_FUNCTIONS}:
            raise InvalidFrame("reference_loaded: unknown functions, or a buffer")
        if error is None and len(functions) != n_parts:
            raise InvalidFrame("reference_loaded: another number of parts")
        return cls(error=error, functions=tuple(functions))


@dataclass(frozen=True, kw_only=True)
class CallReferenceResponse(WorkerResponse):
    """What a function of the reference returns."""

    message_type: ClassVar[str] = "reference_called"
    packed_value: Any = None  # see `pack_value`
    arrays: tuple[bytes, ...] = ()

    def _encode(self) -> Encoded:
        return {"packed_value": self.packed_value}, self.arrays

    @classmethod
    def from_frame(cls, frame: Frame) -> CallReferenceResponse:
        fields = open_message(frame.header, cls.message_type)
        error = ExceptionReport.read_optional(fields)
        response = cls(error=error, packed_value=fields.value("packed_value"), arrays=frame.buffers)
        fields.finish()
        return response

    def value(self) -> Any:
        """Return the value. Raises `InvalidFrame`."""
        return _unpack(self.packed_value, self.arrays)


@dataclass(frozen=True, kw_only=True)
class LoadReferenceRequest(WorkerRequest[LoadReferenceResponse]):
    """Execute the source of a reference; `calls` has the call of each part, in order."""

    message_type: ClassVar[str] = "load_reference"
    activity: ClassVar[str] = "loading reference.py"
    source: bytes
    calls: tuple[str, ...]

    def _encode(self) -> Encoded:
        return {"calls": list(self.calls)}, (self.source,)

    @classmethod
    def _decode(cls, fields: Fields, buffers: tuple[bytes, ...]) -> LoadReferenceRequest:
        (source,) = buffers
        return cls(source=source, calls=fields.texts("calls"))

    def parse_response(self, frame: Frame) -> LoadReferenceResponse:
        return LoadReferenceResponse.from_frame(frame, len(self.calls))

    def error_response(self, error: ExceptionReport) -> LoadReferenceResponse:
        return LoadReferenceResponse(error=error)


@dataclass(frozen=True, kw_only=True)
class DrawState:
    """The source of a case's inputs as data: the generator's state, scale and number of the case.

    The state of NumPy's PCG64 has two numbers of 128 bits, which JSON readers need not support, so
    they travel as text.
    """

    state: str
    increment: str
    scale: int
    number: int

    def encode(self) -> dict[str, Any]:
        return vars(self).copy()

    @classmethod
    def read_optional(cls, fields: Fields) -> DrawState | None:
        draw = fields.optional_object("draw", "draw")
        if draw is None:
            return None
        state = cls(
            state=draw.text("state", 50),
            increment=draw.text("increment", 50),
            scale=draw.integer("scale", _MAX_SCALE),
            number=draw.integer("number", _MAX_NUMBER),
        )
        draw.finish()
        return state


@dataclass(frozen=True, kw_only=True)
class CallReferenceRequest(WorkerRequest[CallReferenceResponse]):
    """Call one function of one part.

    `inputs` gets a `draw`, every other function the packed inputs; `properties` also the result of
    a submission, which is all that the process ever learns about one.
    """

    message_type: ClassVar[str] = "call_reference"
    activity: ClassVar[str] = "running reference.py"
    part: int
    function: ReferenceFunction
    mesh: Mesh
    draw: DrawState | None = None
    packed_arguments: Mapping[str, Any]  # inputs, and the result for `properties`
    arrays: tuple[bytes, ...] = ()

    def _encode(self) -> Encoded:
        content = {
            "part": self.part,
            "function": self.function,
            "mesh": self.mesh.to_json(),
            "draw": self.draw.encode() if self.draw else None,
            "packed_arguments": dict(self.packed_arguments),
        }
        return content, self.arrays

    @classmethod
    def _decode(cls, fields: Fields, buffers: tuple[bytes, ...]) -> CallReferenceRequest:
        function, mesh = fields.text("function"), read_mesh(fields)
        if function not in REFERENCE_FUNCTIONS or mesh is None:
            raise InvalidFrame("call_reference: an unknown function, or no mesh")
        return cls(
            part=fields.integer("part"),
            function=function,
            mesh=mesh,
            draw=DrawState.read_optional(fields),
            packed_arguments=fields.value("packed_arguments"),
            arrays=buffers,
        )

    def arguments(self) -> dict[str, Any]:
        """Return the arguments, with arrays of their own: a reference may write into them."""
        return dict(_unpack(dict(self.packed_arguments), self.arrays, copies=True))

    def parse_response(self, frame: Frame) -> CallReferenceResponse:
        return CallReferenceResponse.from_frame(frame)

    def error_response(self, error: ExceptionReport) -> CallReferenceResponse:
        return CallReferenceResponse(error=error)


def _unpack(packed: Any, buffers: tuple[bytes, ...], *, copies: bool = False) -> Any:
    def read_array(leaf: ArrayLeaf) -> Any:
        if not 0 <= leaf.number < len(buffers):
            raise InvalidFrame("an array refers to a buffer that does not exist")
        array = array_from_buffer(leaf, buffers[leaf.number])
        return array.copy() if copies else array

    return unpack_value(packed, read_array)


_REQUESTS: dict[str, type[WorkerRequest[Any]]] = {
    request_class.message_type: request_class
    for request_class in (LoadReferenceRequest, CallReferenceRequest)
}


def parse_reference_request(frame: Frame) -> ReceivedRequest:
    """Return the request in a frame. Raises `InvalidFrame`."""
    return parse_request(frame, _REQUESTS)
