"""The judge against workers that respond with anything: it always judges, and never accepts.

The workers here are not processes: what a hostile process can send is a frame, and these send any.
"""

from __future__ import annotations

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from judge.small_problems import problem
from judge.test_hostile_messages import ERROR, FINDING, FLOW, HALVES, RESULT, anything, buffers
from shardlab.judge.judge import judge
from shardlab.judge.protocol.reports import PROTOCOL_VERSION
from shardlab.judge.protocol.responses import LoadResponse
from shardlab.sandbox.frame import Frame, InvalidFrame, frame_bytes, parse_frame

PROBLEM = problem("total", meshes=("data=2",), simulated_meshes=("data=2",))
TRACER = {
    "version": PROTOCOL_VERSION,
    "type": "exported",
    "error": None,
    "findings": [],
    "flow": FLOW,
    "n_unchecked": 0,
    "eager_bytes": 0,
    "has_debug_calls": False,
}
EXTRA = {"error": ERROR, "findings": [FINDING], "packed_value": 1, "result": RESULT}
RUNNER = {"version": PROTOCOL_VERSION, "type": "run", "error": None, "result": RESULT}


class HostilePool:
    """Workers that send one drawn response to every request."""

    level = "C"
    confinement = ""

    def __init__(self, responses):
        self._responses = responses

    def start_process(self, role, limits):
        return HostileProcess(self._responses[role])

    def close(self):
        pass


class HostileProcess:
    output = ""
    cpu_seconds = 0.0
    rejected_calls = {}  # noqa: RUF012

    def __init__(self, response):
        self._response = response

    def request(self, frame):
        is_load = frame.header["type"] == "load"
        return LoadResponse().to_frame() if is_load else self._response

    def close(self):
        pass


@st.composite
def nearly_valid(draw, header):
    """Return a valid response with up to three of its parts replaced."""
    forged = json.loads(json.dumps(header))
    for _ in range(draw(st.integers(0, 1))):
        key = draw(st.sampled_from(sorted(EXTRA)))
        forged[key] = json.loads(json.dumps(EXTRA[key]))
    for _ in range(draw(st.integers(0, 2))):
        container = forged
        while isinstance(container, (dict, list)) and container:
            keys = sorted(container) if isinstance(container, dict) else range(len(container))
            key = draw(st.sampled_from(keys))
            if draw(st.booleans()) or not isinstance(container[key], (dict, list)):
                container[key] = draw(anything)
                break
            container = container[key]
    frame = Frame(forged, draw(st.just(HALVES) | st.just((b"program",)) | buffers))
    try:
        return parse_frame(frame_bytes(frame))  # as it would arrive
    except InvalidFrame:
        return Frame({})


@given(nearly_valid(TRACER), nearly_valid(RUNNER))
@settings(deadline=None, max_examples=200, suppress_health_check=list(HealthCheck))
def test_whatever_workers_respond_there_is_a_judgement_that_is_not_accepted(tracer, runner):
    pool = HostilePool({"tracer": tracer, "runner": runner})
    judgement = judge(pool, PROBLEM, "def total(x, mesh): pass", kind="run", seed=1)
    assert judgement.cases
    assert not judgement.passed
