"""Reference processes that respond with anything: the judge gets valid values, or a failure.

The processes here are not processes: what a hostile one can send is a frame, and these send any.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from judge.small_problems import problem
from judge.test_hostile_messages import ERROR, anything, buffers
from shardlab.errors import ReferenceFailed
from shardlab.judge.cases import make_cases
from shardlab.judge.confined_reference import open_references
from shardlab.judge.protocol.reference_messages import REFERENCE_FUNCTIONS, LoadReferenceResponse
from shardlab.judge.protocol.reports import PROTOCOL_VERSION
from shardlab.sandbox.frame import Frame, InvalidFrame, frame_bytes, parse_frame
from shardlab.sharding.spec import Spec

PROBLEM = replace(problem("total"), is_trusted=False)
CASE = make_cases(PROBLEM.parts[0], 1, 2)[1]
TAGS = st.sampled_from(["$array", "$tuple", "$dict", "$slice", "$spec", "$key", "$float", "$x"])
arrays = st.tuples(
    st.integers(-1, 4),
    st.lists(st.integers(-1, 5), max_size=3),
    st.sampled_from(["float32", "bool", "object", "O", "bfloat16", "int64", "M8"]),
).map(lambda parts: {"$array": list(parts)})
values = (
    anything
    | arrays
    | st.dictionaries(TAGS, anything, max_size=2)
    | st.dictionaries(st.sampled_from(["x", "psum", "y"]), arrays | anything, max_size=3)
    | st.lists(arrays | anything, max_size=3)
)


class HostilePool:
    """A reference process that loads, and then sends one drawn response to every request."""

    level, confinement = "C", ""

    def __init__(self, response, functions=REFERENCE_FUNCTIONS):
        self._response = response
        self._loaded = LoadReferenceResponse(functions=(tuple(functions),)).to_frame()

    output = ""

    def start_process(self, role, limits):
        return self

    def request(self, frame):
        is_load = frame.header["type"] == "load_reference"
        return self._loaded if is_load else self._response

    def close(self):
        pass


@st.composite
def responses(draw):
    header = {
        "version": PROTOCOL_VERSION,
        "type": "reference_called",
        "error": draw(st.none() | st.just(ERROR) | anything),
        "packed_value": draw(values),
    }
    for key in draw(st.lists(st.sampled_from([*sorted(header), "extra"]), max_size=1)):
        header[key] = draw(anything)
    try:
        return parse_frame(frame_bytes(Frame(header, draw(buffers))))  # as it would arrive
    except InvalidFrame:
        return Frame({})


def is_spec_tree(value):
    if isinstance(value, (dict, list, tuple)):
        return all(map(is_spec_tree, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, Spec)


@given(responses(), st.sampled_from(REFERENCE_FUNCTIONS))
@settings(deadline=None, max_examples=400, suppress_health_check=list(HealthCheck))
def test_whatever_a_reference_returns_is_a_valid_value_or_a_failure(response, function):
    mesh, x = CASE.draw.mesh, np.zeros(4, np.float32)
    with (
        contextlib.suppress(ReferenceFailed),
        open_references(HostilePool(response), PROBLEM) as references,
    ):
        reference = references[1]
        match function:
            case "inputs":
                inputs = reference.inputs(CASE.draw)
                assert all(isinstance(name, str) for name in inputs)
            case "expected":
                with contextlib.suppress(ValueError):  # a submission must raise it too
                    reference.expected(mesh, x=x)
            case "properties":
                for sentence in reference.properties(mesh, {"x": x}, x):
                    assert isinstance(sentence, str) or len(sentence) == 2
            case "budget":
                assert all(type(n) is int and n >= 0 for n in reference.budget(mesh, x=x).values())
            case "input_specs":
                assert is_spec_tree(dict(reference.input_specs(mesh, x=x)))
            case "output_specs":
                assert is_spec_tree(reference.output_specs(mesh, x=x))
            case "accepts":
                assert type(reference.accepts(mesh, x=x)) is bool


@given(anything)
@settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck))
def test_a_process_that_loads_into_anything_fails(functions):
    pool = HostilePool(Frame({}))
    header = {"version": PROTOCOL_VERSION, "type": "reference_loaded", "error": None}
    pool._loaded = Frame({**header, "functions": functions})
    with pytest.raises(ReferenceFailed), open_references(pool, PROBLEM):
        pass
