"""Messages from a sandboxed process, fuzzed: they are read, or they raise `InvalidFrame`."""

from __future__ import annotations

import json
import os
import struct
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.judge.protocol.reports import PROTOCOL_VERSION, FunctionCall, InputArray
from shardlab.judge.protocol.requests import (
    CallRequest,
    DebugPrintRequest,
    DoctestRequest,
    ExportRequest,
    LoadRequest,
    RunRequest,
    ScriptRequest,
    SimulateRequest,
    StackDumps,
    parse_request,
)
from shardlab.judge.protocol.responses import CallResponse, RunResponse
from shardlab.judge.protocol.values import ArrayLeaf, array_from_buffer, pack_value, unpack_value
from shardlab.sandbox.frame import Frame, InvalidFrame, frame_bytes, parse_frame, read_frame
from shardlab.sharding.mesh import Mesh

numbers = st.integers(-(2**70), 2**70) | st.floats() | st.booleans() | st.none()
keys = st.sampled_from(
    ["$array", "$tuple", "$dict", "$slice", "$spec", "$key", "$float", "float32", "object", "nan"]
) | st.text(max_size=8)
anything = st.recursive(
    numbers | keys,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)
buffers = st.lists(st.binary(max_size=64), max_size=4).map(tuple)

FLOW = {
    "constructs": ["psum", "shard_map"],
    "unused": [],
    "outside": [],
    "is_placed": False,
    "n_shard_maps": 1,
    "mesh_axes": [],
    "has_full_operand": False,
    "outside_arrays": [],
    "body_elements": 0,
    "matmul_elements": 0,
}
RESULT = {
    "outputs": [
        {
            "path": "",
            "shape": [4],
            "dtype": "float32",
            "shards": [
                {"device": 0, "ranges": [[0, 2]]},
                {"device": 1, "ranges": [[2, 4]]},
            ],
        }
    ],
    "collectives": [
        {
            "op": "psum",
            "shape": [2],
            "dtype": "f32",
            "count": 1,
            "group_size": 2,
            "is_inserted": False,
            "is_folded": False,
        }
    ],
    "peak_bytes": 100,
    "flow": FLOW,
    "ineffective": [],
}
RUN = {"version": PROTOCOL_VERSION, "type": "run", "error": None, "result": RESULT}
ERROR = {
    "exception_type": "ValueError",
    "message": "no",
    "line": 3,
    "base_types": ["ValueError"],
    "family": "",
    "what": "",
    "fix": "",
}
FINDING = {
    "code": "hazard.deadlock",
    "severity": "error",
    "what": "Devices block.",
    "fix": "do not.",
    "cause": "",
    "line": 3,
    "shows": [],
}
HALVES = (np.arange(2, dtype="float32").tobytes(), np.arange(2, 4, dtype="float32").tobytes())


def read_or_reject(read, *arguments):
    """Return what is read, or that it is invalid; raise anything else."""
    try:
        return read(*arguments)
    except InvalidFrame as error:
        return error


def read_run(frame):
    return RunResponse.from_frame(frame, (0, 1))


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_bytes_are_a_frame_or_invalid(data):
    read_or_reject(parse_frame, data)


@given(st.binary(max_size=60), st.integers(-4, 4), st.binary(max_size=8))
@settings(deadline=None)
def test_wrong_lengths_are_found(header, difference, body):
    prefix = struct.pack("<II", max(len(header) + difference, 0), len(body))
    read_or_reject(parse_frame, prefix + header + body)


@given(anything, st.binary(max_size=20))
@settings(deadline=None)
def test_any_json_is_a_header_or_invalid(data, body):
    header = json.dumps({"sizes": data}).encode()
    read_or_reject(parse_frame, struct.pack("<II", len(header), len(body)) + header + body)


@given(anything)
@settings(deadline=None)
def test_any_json_is_a_value_or_invalid(data):
    read_or_reject(unpack_value, data, lambda leaf: array_from_buffer(leaf, b"1234"))


@given(anything, buffers)
@settings(deadline=None)
def test_any_response_has_a_value_or_is_invalid(data, parts):
    header = {"version": PROTOCOL_VERSION, "type": "called", "error": None, "packed_value": data}
    read_or_reject(CallResponse.from_frame, Frame(header, parts))


@st.composite
def forged_runs(draw):
    """Return a valid response of a runner with one part of it replaced."""
    header = json.loads(json.dumps(RUN))
    result = header["result"]
    (output,), (call,) = result["outputs"], result["collectives"]
    targets = [(header, key) for key in header]
    targets += [(result, key) for key in result]
    targets += [(output, key) for key in output]
    targets += [(output["shards"][0], key) for key in ("device", "ranges")]
    targets += [(output["shards"], 1), (result["outputs"], 0), (result["collectives"], 0)]
    targets += [(call, key) for key in call]
    container, key = draw(st.sampled_from(targets))
    container[key] = draw(anything)
    return Frame(header, draw(st.just(HALVES) | buffers))


def test_a_valid_run_is_read():
    result = RunResponse.from_frame(Frame(RUN, HALVES), (1, 0)).result
    assert [shard.values.tolist() for shard in result.outputs[0].shards] == [[0, 1], [2, 3]]


@given(forged_runs())
@settings(deadline=None, max_examples=400)
def test_a_forged_run_is_read_or_invalid(frame):
    read_or_reject(read_run, frame)


CALL = FunctionCall(
    function="f",
    argument_names=("x", "mesh"),
    packed_inputs=pack_value({"x": np.arange(4)})[0],
    mesh=Mesh({"data": 2}, device_ids=(1, 0)),
    input_specs=("P('data')",),
)
STACK_DUMPS = StackDumps(wall_seconds=2.5, cpu_seconds=1.5)
REQUESTS = [
    LoadRequest(source=b"x = 1"),
    ExportRequest(call=CALL),
    SimulateRequest(call=CALL, arrays=(bytes(32),)),
    CallRequest(call=CALL, arrays=(bytes(32),)),
    DebugPrintRequest(call=CALL, arrays=(bytes(32),)),
    ScriptRequest(source="print('é')"),
    DoctestRequest(text=">>> 1\n1\n"),
    RunRequest(
        program=b"program",
        mesh=CALL.mesh,
        inputs=(InputArray(shape=(4,), dtype="int64", spec="P('data')", values=bytes(32)),),
    ),
    RunRequest(program=b"program"),
]


@pytest.mark.parametrize("original", REQUESTS, ids=lambda request: request.message_type)
def test_a_request_is_received_as_it_was_sent(original):
    frame = parse_frame(frame_bytes(original.to_frame(STACK_DUMPS)))
    received = parse_request(frame)
    assert (received.request, received.stack_dumps) == (original, STACK_DUMPS)


RESPONSES = {
    "loaded": (LoadRequest(source=b""), {"defined_names": ["f"]}),
    "exported": (
        ExportRequest(call=CALL),
        {
            "findings": [FINDING],
            "flow": FLOW,
            "n_unchecked": 0,
            "eager_bytes": 0,
            "has_debug_calls": False,
        },
    ),
    "simulated": (
        SimulateRequest(call=CALL),
        {"result": RESULT, "findings": [FINDING], "n_unchecked": 1, "has_debug_calls": True},
    ),
    "called": (CallRequest(call=CALL), {"packed_value": [1, {"$tuple": []}]}),
    "run": (RunRequest(program=b"", mesh=CALL.mesh), {"result": RESULT}),
    "script_output": (ScriptRequest(source=""), {"printed": "1\n"}),
    "debug_printed": (
        DebugPrintRequest(call=CALL),
        {
            "devices": [{"place": "data=1", "text": "1\n", "is_truncated": False}],
            "n_devices": 2,
        },
    ),
    "doctest_result": (
        DoctestRequest(text=""),
        {
            "n_examples": 1,
            "failures": [{"line": 1, "source": "f()", "expected": "1", "actual": "2"}],
        },
    ),
}


def valid_response(message_type):
    """Return a request, and the header of a valid response to it."""
    request, fields = RESPONSES[message_type]
    return request, {"version": PROTOCOL_VERSION, "type": message_type, "error": None, **fields}


def response_buffers(header):
    return HALVES if header.get("result") else ()


@pytest.mark.parametrize("message_type", RESPONSES)
def test_a_valid_response_is_read_and_encodes_to_itself(message_type):
    request, header = valid_response(message_type)
    frame = Frame(header, response_buffers(header))
    assert request.parse_response(frame).to_frame() == frame


@pytest.mark.parametrize("message_type", RESPONSES)
def test_an_error_takes_the_place_of_the_result(message_type):
    request, header = valid_response(message_type)
    no_result = {"result": None} if "result" in header else {}
    response = request.parse_response(Frame({**header, **no_result, "error": ERROR}))
    assert response.error.message == "no"


@pytest.mark.parametrize("message_type", RESPONSES)
@pytest.mark.parametrize(
    "change",
    [
        {"version": PROTOCOL_VERSION + 1},
        {"version": str(PROTOCOL_VERSION)},
        {"version": True},
        {"type": "other"},
        {"unknown": 1},
        {"error": {}},
        {"error": "no"},
        {"error": {**ERROR, "line": -1}},
        {"error": {**ERROR, "line": "3"}},
        {"error": {**ERROR, "message": None}},
        {"error": {**ERROR, "message": "x" * 1_000_000}},
        {"error": {**ERROR, "base_types": [1]}},
        {"error": {**ERROR, "unknown": 1}},
    ],
    ids=lambda change: str(change)[:40],
)
def test_anything_else_is_invalid(message_type, change):
    request, header = valid_response(message_type)
    no_result = {"result": None} if "result" in header and "error" in change else {}
    header = {**header, **no_result, **change}
    with pytest.raises(InvalidFrame):
        request.parse_response(Frame(header, response_buffers(header)))


@pytest.mark.parametrize("message_type", RESPONSES)
def test_every_field_is_required_and_has_its_type(message_type):
    request, header = valid_response(message_type)
    for key in header:
        missing = {name: value for name, value in header.items() if name != key}
        with pytest.raises(InvalidFrame):
            request.parse_response(Frame(missing, response_buffers(header)))
        if key != "packed_value":  # of any type
            wrong_type = Frame({**header, key: {"x": 1}}, response_buffers(header))
            with pytest.raises(InvalidFrame):
                request.parse_response(wrong_type)


@pytest.mark.parametrize("key", FINDING)
def test_a_finding_has_all_its_fields(key):
    request, header = valid_response("exported")
    for finding in (
        {name: value for name, value in FINDING.items() if name != key},
        {**FINDING, key: 3.5},
        {**FINDING, "severity": "fatal"},
        {**FINDING, "shows": [1]},
        "text",
    ):
        with pytest.raises(InvalidFrame):
            request.parse_response(Frame({**header, "findings": [finding]}))


def test_more_findings_than_any_program_has_are_invalid():
    request, header = valid_response("exported")
    with pytest.raises(InvalidFrame, match="too long"):
        request.parse_response(Frame({**header, "findings": [FINDING] * 1001}))


def test_buffers_without_a_use_are_invalid():
    run, header = valid_response("run")
    with pytest.raises(InvalidFrame, match="more buffers than shards"):
        run.parse_response(Frame(header, (*HALVES, b"")))
    with pytest.raises(InvalidFrame, match="buffers without a result"):
        run.parse_response(Frame({**header, "result": None, "error": ERROR}, HALVES))
    load, header = valid_response("loaded")
    with pytest.raises(InvalidFrame, match="more than 0 buffers"):
        load.parse_response(Frame(header, (b"x",)))


def test_a_request_of_another_version_or_type_is_invalid():
    header = LoadRequest(source=b"").to_frame().header
    for change in ({"version": 0}, {"type": "unknown"}, {"type": ["load"]}, {"more": 1}):
        with pytest.raises(InvalidFrame):
            parse_request(Frame({**header, **change}, (b"",)))


@pytest.mark.parametrize(
    ("leaf", "buffer"),
    [
        (ArrayLeaf(0, (1,), "object"), b"12345678"),
        (ArrayLeaf(0, (1,), "O"), b"12345678"),
        (ArrayLeaf(0, (1,), "V8"), b"12345678"),
        (ArrayLeaf(0, (1 << 62,), "float32"), b""),
        (ArrayLeaf(0, (-1,), "float32"), b""),
        (ArrayLeaf(0, (-1, -1), "int8"), b"1"),
        (ArrayLeaf(0, (0, 1 << 80), "int8"), b""),
        (ArrayLeaf(0, (0, 1 << 40, 1 << 40), "int8"), b""),
        (ArrayLeaf(0, (1,) * 100, "int8"), b"1"),
    ],
)
def test_impossible_arrays_are_invalid(leaf, buffer):
    with pytest.raises(InvalidFrame):
        array_from_buffer(leaf, buffer)


@given(st.lists(st.floats(width=32), max_size=6), st.booleans())
@settings(deadline=None)
def test_a_packed_value_is_returned(values, as_tuple):
    array = np.array(values, "float32")
    data, arrays = pack_value({"x": (array,) if as_tuple else [array]})
    response = CallResponse(packed_value=data, buffers=tuple(array.tobytes() for array in arrays))
    frame = parse_frame(frame_bytes(response.to_frame()))
    returned = CallResponse.from_frame(frame).value()["x"]
    assert isinstance(returned, tuple if as_tuple else list)
    np.testing.assert_array_equal(returned[0], array)


def test_a_pipe_that_breaks_in_the_middle_of_a_frame_is_invalid():
    reads, writes = os.pipe()
    data = frame_bytes(Frame({"x": 1}, (b"abc",)))

    def write():
        os.write(writes, data + data[:-1])
        os.close(writes)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert read_frame(reads) == Frame({"x": 1}, (b"abc",))
        with pytest.raises(InvalidFrame, match="truncated"):
            read_frame(reads)
    finally:
        thread.join()
        os.close(reads)
