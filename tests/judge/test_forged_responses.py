"""Submissions that forge the responses of their worker: read, or no result; never another error."""

import struct
from dataclasses import replace

import numpy as np
import pytest

from judge.small_problems import problem
from judge.test_hostile_messages import FLOW
from judge.test_hostile_workers import HostilePool
from shardlab.catalogue.reference import load_reference
from shardlab.judge.case_request import CaseRequest
from shardlab.judge.case_result import create_case_result, evaluate_case
from shardlab.judge.cases import make_cases
from shardlab.judge.counterexample import counterexample_facts, value_text
from shardlab.judge.debug_output import debug_output_text
from shardlab.judge.debug_runs import run_debug_prints
from shardlab.judge.grading.evidence import array_text
from shardlab.judge.judge import judge
from shardlab.judge.protocol.reports import PROTOCOL_VERSION
from shardlab.judge.protocol.responses import ExportResponse, RunResponse
from shardlab.judge.submission_source import SubmissionSource
from shardlab.sandbox.frame import Frame, InvalidFrame
from shardlab.sandbox.process import ProcessLimits

SOURCE = SubmissionSource("")
PSUM = {
    "op": "psum",
    "dtype": "float32",
    "shape": [1],
    "count": 1,
    "group_size": 4,
    "is_inserted": False,
    "is_folded": False,
}


def make_request(name, **options):
    small_problem = problem(name, **options)
    (case, *_) = make_cases(small_problem.parts[0], 3, 2)
    reference = load_reference(small_problem, small_problem.parts[0])
    return CaseRequest(case, reference, reference.inputs(case.draw))


@pytest.fixture(scope="module")
def simulated():
    request = make_request("total", meshes=("data=2,model=2",))
    return replace(request, case=replace(request.case, is_simulated=True))


def simulated_frame(devices, values, **changes):
    shards = [{"device": device, "ranges": []} for device in devices]
    result = {
        "outputs": [{"path": "", "shape": [], "dtype": "float32", "shards": shards}],
        "collectives": [PSUM],
        "peak_bytes": 0,
        "flow": FLOW,
        "ineffective": [],
        **changes,
    }
    header = {
        "version": PROTOCOL_VERSION,
        "type": "simulated",
        "error": None,
        "findings": [],
        "n_unchecked": 0,
        "has_debug_calls": False,
        "result": result,
    }
    return Frame(header, tuple(struct.pack("<f", value) for value in values))


def parse_response(request, frame):
    return request.tracer_request().parse_response(frame)


def first_verdict(request, frame):
    """Return the verdict as it is stored, after everything that is made of a response."""
    outcome = evaluate_case(request, parse_response(request, frame), None, SOURCE)
    counterexample_facts(outcome)
    return create_case_result(outcome, is_example=False).verdicts[0]


def test_a_right_response_is_read(simulated):
    expected = float(simulated.expected.value)
    assert first_verdict(simulated, simulated_frame(range(4), [expected] * 4)).code == "AC"


IMPOSSIBLE = [
    ((999_999, 1_000_000), {}),
    ((0, 3), {}),
    ((77_777,), {}),
    ((0, 1, 2, 3, 4), {}),
    ((0, 0, 1, 2), {}),
    (range(4), {"collectives": [{**PSUM, "shape": [10**4000, 10**4000]}]}),
    (range(4), {"collectives": [{**PSUM, "shape": [2**61, 2**61]}]}),
    (range(4), {"collectives": [{**PSUM, "count": 10**4000}] * 2}),
    (range(4), {"collectives": [{**PSUM, "count": -1}]}),
    (range(4), {"collectives": [{**PSUM, "group_size": 10**4000}]}),
    (range(4), {"collectives": [{**PSUM, "op": "x" * 10**6, "group_size": 1}]}),
    (range(4), {"collectives": [{**PSUM, "op": "unknown"}]}),
    (range(4), {"collectives": [{**PSUM, "dtype": "unknown"}]}),
    (range(4), {"collectives": [{**PSUM, "payload_bytes": 0}]}),
    (range(4), {"peak_bytes": 10**4299}),
]


@pytest.mark.parametrize(("devices", "changes"), IMPOSSIBLE, ids=lambda value: str(value)[:40])
def test_what_cannot_be_is_invalid(simulated, devices, changes):
    frame = simulated_frame(devices, range(len(devices)), **changes)
    with pytest.raises(InvalidFrame):
        parse_response(simulated, frame)


def test_an_invalid_response_is_a_runtime_error_of_the_submission():
    """The process is replaced and gets the request once more, in case somebody killed it."""
    pool = HostilePool({"tracer": simulated_frame((0, 3), (1, 2)), "runner": Frame({})})
    small_problem = problem("total", meshes=("data=1",), simulated_meshes=("data=2,model=2",))
    source = "def total(x, mesh): pass"
    judgement = judge(pool, small_problem, source, kind="submit", seed=3)
    verdict = judgement.cases[-1].verdicts[0]
    assert verdict.code == "RTE"
    assert verdict.what.startswith("The process returned something else than a result while")


def test_replicas_on_devices_that_form_no_grid_are_compared(simulated):
    """Devices 0 and 3 are at opposite corners of the mesh, and no other device has their range."""
    shards = [
        {"device": device, "ranges": [[row, row + 1]]} for device, row in enumerate((0, 1, 1, 0))
    ]
    outputs = [{"path": "", "shape": [2], "dtype": "float32", "shards": shards}]
    request = replace(simulated)
    request.__dict__["expected"] = replace(simulated.expected, value=np.float32([1, 2]))
    frame = simulated_frame((), (7, 8, 9, 10), outputs=outputs)
    assert first_verdict(request, frame).code == "REPLICAS"


@pytest.mark.parametrize(
    "value",
    [{"$key": float("inf")}, [{"$array": [0, [8], "bool"]}] * 2],
    ids=["a key", "one array twice"],
)
def test_a_value_that_cannot_be_is_invalid(value):
    request = make_request("halves")
    header = {"version": PROTOCOL_VERSION, "type": "called", "error": None, "packed_value": value}
    with pytest.raises(InvalidFrame):
        parse_response(request, Frame(header, (bytes(8),)))


def test_an_exception_in_grading_is_the_fault_of_who_sent_the_values(simulated, monkeypatch):
    monkeypatch.setattr("shardlab.judge.case_result.grade_run", lambda *arguments: 1 // 0)
    response = parse_response(simulated, simulated_frame(range(4), range(4)))
    assert evaluate_case(simulated, response, None, SOURCE).code == "RTE"
    exported = replace(simulated, case=replace(simulated.case, is_simulated=False))
    run = RunResponse(result=response.result)
    assert evaluate_case(exported, ExportResponse(), run, SOURCE).code == "IE"


def test_rows_without_elements_are_printed_without_counting_them():
    empty_rows = np.zeros((1 << 40, 0), np.float32)
    assert array_text(empty_rows) == "[]"
    assert value_text(empty_rows) == "float32[1099511627776,0] []"


def device_text(**changes):
    return {"place": "data=1", "text": "sum 1\n", "is_truncated": False, **changes}


FORGED_PRINTS = {
    "valid": ([device_text(), device_text(place="data=0"), device_text(place="")], True),
    "unknown places": ([device_text(place="pod=9"), device_text(place="\x1b[2J")], True),
    "the same place twice": ([device_text(), device_text()], True),
    "too many devices": ([device_text(place=f"data={i}") for i in range(17)], False),
    "too long": ([device_text(text="x" * 2001)], False),
    "no text": ([device_text(text=["x"])], False),
    "another field": ([device_text(verdict="AC")], False),
}


@pytest.mark.parametrize("name", FORGED_PRINTS)
def test_forged_prints_are_shown_or_dropped_and_decide_nothing(name):
    devices, is_valid = FORGED_PRINTS[name]
    header = {"version": PROTOCOL_VERSION, "type": "debug_printed", "error": None, "n_devices": 2}
    pool = HostilePool({"tracer": Frame({**header, "devices": devices})})
    request = make_request("total", meshes=("data=2",))
    (output,) = run_debug_prints(pool, SOURCE, ProcessLimits(), [request], None)
    text = debug_output_text(output)
    assert "\x1b" not in text
    assert ("No more is printed" in text) != is_valid
    if name == "valid":
        # In mesh order, after what is printed once; the worker's order is the submission's.
        assert [device.device for device in output.devices] == [None, 0, 1]
    elif name == "unknown places":
        assert [device.device for device in output.devices] == [None, None]
