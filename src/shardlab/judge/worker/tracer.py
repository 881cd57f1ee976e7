"""The tracer: loads a submission, and returns programs or values of it.

It shares its interpreter with the submission, so what it reports can make a verdict worse but not
better, except for the facts that docs/judge.md lists. Whether a result is right is read from the
exported program, by the runner.

    load      source -> the names that it defines
    export    shapes and a mesh -> findings, and the program as bytes
    simulate  values and a large mesh -> the shards of every virtual device
    call      values -> the value that the function returns
    print     values and a mesh -> what jax.debug.print prints, by device
    script    source of a problem's page -> what it prints
    doctest   a page's examples -> those that fail
"""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp

from shardlab.judge.protocol.reports import FunctionCall
from shardlab.judge.protocol.requests import (
    CallRequest,
    DebugPrintRequest,
    DoctestRequest,
    ExportRequest,
    LoadRequest,
    ScriptRequest,
    SimulateRequest,
    WorkerRequest,
)
from shardlab.judge.protocol.responses import (
    CallResponse,
    ExportResponse,
    LoadResponse,
    SimulateResponse,
    WorkerResponse,
)
from shardlab.judge.protocol.values import (
    ArrayLeaf,
    array_bytes,
    array_from_buffer,
    pack_value,
    unpack_value,
)
from shardlab.judge.worker.debug_prints import run_debug_prints
from shardlab.judge.worker.error_reports import SubmissionError, report_exception
from shardlab.judge.worker.jax_overrides import (
    create_host_mesh,
    restored_device_config,
    single_device,
)
from shardlab.judge.worker.loaded_submission import LoadedSubmission, build_arguments
from shardlab.judge.worker.page_examples import run_doctests, run_script
from shardlab.judge.worker.simulation import simulate_submission
from shardlab.judge.worker.tracing import SubmissionRejected, eager_bytes, trace_submission
from shardlab.judge.worker.worker_process import (
    serve_requests,
    set_fast_compilation,
    set_fast_lowering,
)
from shardlab.sandbox.frame import InvalidFrame


class Tracer:
    """Handles requests about one submission."""

    def __init__(self) -> None:
        self._submission = LoadedSubmission()

    def handle_request(self, request: WorkerRequest[Any]) -> WorkerResponse:
        """Return the response to a request, also if the submission raises."""
        try:
            return self._dispatch_request(request)
        # A submission can raise anything: SystemExit, KeyboardInterrupt, classes of its own.
        except BaseException as error:
            return request.error_response(report_exception(error))

    def _dispatch_request(self, request: WorkerRequest[Any]) -> WorkerResponse:
        match request:
            case LoadRequest():
                return self._load_source(request)
            case ExportRequest():
                return self._export_program(request)
            case SimulateRequest():
                return self._simulate_program(request)
            case CallRequest():
                return self._call_function(request)
            case DebugPrintRequest():
                inputs = _read_arrays(request.call, request.arrays)
                return run_debug_prints(self._submission, request, inputs)
            case ScriptRequest():
                return run_script(request.source)
            case DoctestRequest():
                return run_doctests(request.text, self._submission.names)
        raise InvalidFrame(f"the tracer does not serve {request.message_type!r}")

    def _load_source(self, request: LoadRequest) -> LoadResponse:
        with restored_device_config():
            return LoadResponse(defined_names=self._submission.load_source(request.source))

    def _export_program(self, request: ExportRequest) -> ExportResponse:
        """Trace the function on a mesh, check it for hazards, and return it as a program.

        JAX leaves no sign of a shard_map in a program for one device. There the flow of the trace
        is all there is, and it is the submission's own claim.
        """
        mesh = create_host_mesh(request.call.mesh) if request.call.mesh else None
        try:
            traced = trace_submission(self._submission, request.call, mesh)
            return ExportResponse(
                program=traced.export_program(),
                findings=traced.findings,
                flow=traced.flow,
                n_unchecked=traced.n_unchecked,
                eager_bytes=eager_bytes(traced.jaxpr),
                has_debug_calls=traced.has_debug_calls,
            )
        except SubmissionRejected as rejection:
            return ExportResponse(error=rejection.error, findings=rejection.findings)

    def _simulate_program(self, request: SimulateRequest) -> SimulateResponse:
        inputs = _read_arrays(request.call, request.arrays)
        try:
            return simulate_submission(self._submission, request, inputs)
        except SubmissionRejected as rejection:
            return SimulateResponse(error=rejection.error, findings=rejection.findings)

    def _call_function(self, request: CallRequest) -> CallResponse:
        function = self._submission.find_function(request.call)
        inputs = _read_arrays(request.call, request.arrays)
        arguments = build_arguments(
            request.call, None, lambda leaf: jnp.asarray(inputs[leaf.number])
        )
        # Plain values are computed without a mesh, as on a machine with one device.
        with single_device():
            result = function(*arguments)
            with contextlib.suppress(BaseException):  # what a debug callback raises is no verdict
                jax.effects_barrier()  # jax.debug.print prints from another thread
        if result is None:
            raise SubmissionError(
                "no_result",
                f"{request.call.function} returned None.",
                "end the function with a return statement.",
            )
        return _pack_result(result)


def _read_arrays(call: FunctionCall, buffers: tuple[bytes, ...]) -> list[Any]:
    """Return the arrays of a call, by number."""
    arrays: dict[int, Any] = {}

    def read_leaf(leaf: ArrayLeaf) -> None:
        arrays[leaf.number] = array_from_buffer(leaf, buffers[leaf.number])

    unpack_value(call.packed_inputs, read_leaf)
    return [arrays[number] for number in sorted(arrays)]


def _pack_result(value: Any) -> CallResponse:
    try:
        data, arrays = pack_value(value)
    except InvalidFrame as error:
        raise SubmissionError(
            "not_a_value",
            f"The submission returned a {type(value).__name__}: {error}.",
            "return numbers, text, slices or arrays, or dicts, lists and tuples of them.",
        ) from None
    return CallResponse(packed_value=data, buffers=tuple(map(array_bytes, arrays)))


def main(requests_fd: int, responses_fd: int) -> None:
    """Serve requests until there are no more."""
    set_fast_compilation()
    set_fast_lowering()
    serve_requests(Tracer().handle_request, requests_fd, responses_fd)
