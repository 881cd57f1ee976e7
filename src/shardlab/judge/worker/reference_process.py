"""Executes `reference.py` of an uploaded catalogue, and calls its functions. NumPy, no JAX.

It is the code of whoever uploaded the catalogue, and it knows the expected values. So it has a
process, and a fork server, of its own: a submission shares no memory with it.
"""

from __future__ import annotations

import sys
import traceback
from types import ModuleType
from typing import Any

import numpy as np

from shardlab.catalogue import drawing, threefry
from shardlab.catalogue.reference import Draw, Reference, execute_reference, select_functions
from shardlab.errors import InvalidReference
from shardlab.judge.protocol.reference_messages import (
    REFERENCE_FUNCTIONS,
    CallReferenceRequest,
    CallReferenceResponse,
    LoadReferenceRequest,
    LoadReferenceResponse,
    parse_reference_request,
)
from shardlab.judge.protocol.reports import ExceptionReport
from shardlab.judge.protocol.requests import WorkerRequest
from shardlab.judge.protocol.responses import WorkerResponse
from shardlab.judge.protocol.values import array_bytes, pack_value
from shardlab.judge.worker.stack_dumps import dump_stacks
from shardlab.sandbox.frame import read_frame, write_frame

REFERENCE_FILE = "reference.py"  # its name in tracebacks
_MAX_MESSAGE = 2000
# Imported by references; here once, so that a fork finds them loaded.
_PRELOADED = (drawing, threefry)


class ReferenceWorker:
    """Handles requests about one reference."""

    def __init__(self) -> None:
        self._references: tuple[Reference, ...] = ()

    def handle_request(self, request: WorkerRequest[Any]) -> WorkerResponse:
        """Return the response to a request, also if the reference raises."""
        try:
            if isinstance(request, LoadReferenceRequest):
                return self._load(request)
            assert isinstance(request, CallReferenceRequest)
            return self._call(request)
        # It can raise anything: SystemExit, KeyboardInterrupt, classes of its own.
        except BaseException as error:
            return request.error_response(_report(error))

    def _load(self, request: LoadReferenceRequest) -> LoadReferenceResponse:
        module = execute_reference(request.source, REFERENCE_FILE)
        parts = list(enumerate(request.calls, 1))
        self._references = tuple(select_functions(module, number, call) for number, call in parts)
        return LoadReferenceResponse(
            functions=tuple(_defined_functions(module, number) for number, _ in parts)
        )

    def _call(self, request: CallReferenceRequest) -> CallReferenceResponse:
        reference = self._references[request.part - 1]
        function = getattr(reference, request.function)
        arguments = request.arguments()
        if request.function == "inputs":
            value = function(_restore_draw(request))
        elif request.function == "properties":
            value = list(function(request.mesh, arguments["inputs"], arguments["result"]))
        else:
            value = function(request.mesh, **arguments["inputs"])
        packed, arrays = pack_value(value)
        return CallReferenceResponse(
            packed_value=packed, arrays=tuple(array_bytes(array) for array in arrays)
        )


def _defined_functions(module: ModuleType, number: int) -> tuple[str, ...]:
    suffix = "" if number == 1 else f"_{number}"
    return tuple(name for name in REFERENCE_FUNCTIONS if hasattr(module, name + suffix))


def _restore_draw(request: CallReferenceRequest) -> Draw:
    assert request.draw is not None
    generator = np.random.PCG64()
    generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": int(request.draw.state), "inc": int(request.draw.increment)},
        "has_uint32": 0,
        "uinteger": 0,
    }
    return Draw(
        rng=np.random.Generator(generator),
        mesh=request.mesh,
        scale=request.draw.scale,
        number=request.draw.number,
    )


def _report(error: BaseException) -> ExceptionReport:
    """Return an exception as data, with the line of the reference that raised it."""
    if isinstance(error, InvalidReference):
        cause = error.__cause__ or error
        what, line = error.what, _reference_line(cause)
    else:
        what, line = "", _reference_line(error)
    return ExceptionReport(
        exception_type=type(error).__name__[:80],
        message=str(error)[:_MAX_MESSAGE],
        line=line,
        base_types=tuple(base.__name__[:80] for base in type(error).__mro__[:20]),
        what=what[:_MAX_MESSAGE],
    )


def _reference_line(error: BaseException) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == REFERENCE_FILE:
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == REFERENCE_FILE]
    return lines[-1] if lines else None


def warm_up() -> None:
    """Import what references use; done by the imports of this module."""
    assert all(_PRELOADED)


def main(requests_fd: int, responses_fd: int) -> None:
    """Serve requests until there are no more."""
    worker = ReferenceWorker()
    while (frame := read_frame(requests_fd)) is not None:
        received = parse_reference_request(frame)
        with dump_stacks(received.stack_dumps):
            response = worker.handle_request(received.request)
        sys.stdout.flush()
        write_frame(responses_fd, response.to_frame())
