"""A tracer and a runner as the judge has them, with short ways to send them requests."""

from __future__ import annotations

from typing import Any

from shardlab.judge.grading.evidence import assemble_output
from shardlab.judge.protocol.reports import FunctionCall, InputArray
from shardlab.judge.protocol.requests import (
    CallRequest,
    ExportRequest,
    LoadRequest,
    RunRequest,
    SimulateRequest,
)
from shardlab.judge.protocol.values import array_bytes, pack_value
from shardlab.sandbox.process import ProcessEnded, ProcessLimits
from shardlab.sharding.mesh import Mesh, parse_mesh


class WorkerBench:
    """Two workers; one that has ended is replaced at the next request."""

    def __init__(self, pool) -> None:
        self._pool = pool
        self._processes: dict[str, Any] = {}
        self._source: bytes | None = None

    def send_request(self, role, request):
        if role not in self._processes:
            self._processes[role] = self._pool.start_process(role, ProcessLimits())
            if role == "tracer" and self._source is not None:
                self._processes[role].request(LoadRequest(source=self._source).to_frame())
        try:
            return request.parse_response(self._processes[role].request(request.to_frame()))
        except ProcessEnded:
            self._processes.pop(role).close()
            raise

    def close(self):
        for process in self._processes.values():
            process.close()

    # ------------------------------------------------------------------------- the tracer

    def load(self, source):
        """Load a submission, unless it is loaded already, and return the error of that."""
        data = source if isinstance(source, bytes) else source.encode()
        if data == self._source and "tracer" in self._processes:
            return None
        self._source = None
        response = self.send_request("tracer", LoadRequest(source=data))
        self._source = data
        return response.error

    def export(self, function, mesh=None, specs=None, **inputs):
        call, _ = function_call(function, mesh, specs, inputs)
        return self.send_request("tracer", ExportRequest(call=call))

    def simulate(self, function, mesh, specs=None, **inputs):
        call, arrays = function_call(function, mesh, specs, inputs)
        return self.send_request("tracer", SimulateRequest(call=call, arrays=arrays))

    def call(self, function, **inputs):
        call, arrays = function_call(function, None, None, inputs)
        return self.send_request("tracer", CallRequest(call=call, arrays=arrays))

    # ------------------------------------------------------------------------- the runner

    def run(self, function, mesh=None, specs=None, **inputs):
        """Return the result of a function that is exported and run."""
        exported = self.export(function, mesh, specs, **inputs)
        assert exported.program, exported
        response = self.run_program(exported.program, mesh, specs, *pack_value(inputs)[1])
        assert response.error is None, response.error
        return response.result

    def run_program(self, program, mesh, specs, *arrays):
        inputs = tuple(
            InputArray(
                shape=array.shape, dtype=array.dtype.name, spec=spec, values=array_bytes(array)
            )
            for array, spec in zip(arrays, specs or ["P()"] * len(arrays), strict=True)
        )
        request = RunRequest(program=program, mesh=to_mesh(mesh), inputs=inputs)
        return self.send_request("runner", request)


def function_call(function, mesh, specs, inputs):
    """Return a call with all inputs in order, and the buffers of its arrays."""
    data, arrays = pack_value(inputs)
    call = FunctionCall(
        function=function,
        argument_names=(*inputs, *(["mesh"] if mesh else [])),
        packed_inputs=data,
        mesh=to_mesh(mesh),
        input_specs=tuple(specs or ["P()"] * len(arrays)),
    )
    return call, tuple(map(array_bytes, arrays))


def to_mesh(mesh):
    return mesh if mesh is None or isinstance(mesh, Mesh) else parse_mesh(mesh)


def full_arrays(result):
    """Return every output of a run as one array."""
    return [assemble_output(output) for output in result.outputs]
