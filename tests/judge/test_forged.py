"""Answers that speak for themselves: what they say of a case is read, or it is no result."""

import struct
from dataclasses import replace

import numpy as np
import pytest

from judge.tiny import problem
from shardlab.catalogue.reference import load_reference
from shardlab.judge.case_request import Question
from shardlab.judge.case_result import made_of, result
from shardlab.judge.cases import make_cases
from shardlab.judge.counterexample import exhibit, value_text
from shardlab.judge.grading.evidence import numbers
from shardlab.judge.source import SubmissionSource
from shardlab.sandbox.frame import Frame

SOURCE = SubmissionSource("")
PSUM = {"op": "psum", "dtype": "float32", "shape": [1], "count": 1, "group_size": 4}


def question(name, **options):
    asked = problem(name, **options)
    (case, *_) = make_cases(asked.parts[0], 3, 2)
    reference = load_reference(asked, asked.parts[0])
    return Question(case, reference, reference.inputs(case.draw))


@pytest.fixture(scope="module")
def simulated():
    found = question("total", ladder=("data=2,model=2",))
    return replace(found, case=replace(found.case, is_simulated=True))


def told_of(devices, values, **header):
    shards = [{"device": device, "ranges": []} for device in devices]
    outputs = [{"path": "", "shape": [], "dtype": "float32", "shards": shards}]
    told = {"outputs": outputs, "calls": [PSUM], "peak_bytes": 0, "has_shard_map": True, **header}
    return Frame(told, tuple(struct.pack("<f", value) for value in values))


def judged(asked, frame):
    """Return the verdict as it is kept, after all that is made of an answer was made of it."""
    outcome = made_of(asked, frame, None, SOURCE)
    exhibit(outcome)
    return result(outcome, is_example=False).verdicts[0]


def test_what_is_right_is_read(simulated):
    want = float(simulated.right.expected)
    assert judged(simulated, told_of(range(4), [want] * 4)).code == "AC"


@pytest.mark.parametrize(
    ("devices", "header"),
    [
        ((999_999, 1_000_000), {}),
        ((0, 3), {}),
        ((77_777,), {}),
        ((0, 1, 2, 3, 4), {}),
        ((0, 0, 1, 2), {}),
        (range(4), {"calls": [{**PSUM, "shape": [10**4000, 10**4000]}]}),
        (range(4), {"calls": [{**PSUM, "count": 10**4000}] * 2}),
        (range(4), {"calls": [{**PSUM, "count": -1}]}),
        (range(4), {"calls": [{**PSUM, "group_size": 10**4000}]}),
        (range(4), {"calls": [{**PSUM, "op": "x" * 10**6, "group_size": 1}]}),
        (range(4), {"peak_bytes": 10**4299}),
    ],
    ids=lambda told: str(told)[:40],
)
def test_what_cannot_be_is_no_result(simulated, devices, header):
    frame = told_of(devices, range(len(devices)), **header)
    verdict = judged(simulated, frame)
    assert verdict.code == "RTE"
    assert verdict.what.startswith("Something else than a result came back")


def test_copies_on_devices_that_form_no_grid_are_told(simulated):
    """Devices 0 and 3 are at the corners of the mesh, and nothing lies between them."""
    shards = [
        {"device": device, "ranges": [[at, at + 1]]} for device, at in enumerate((0, 1, 1, 0))
    ]
    outputs = [{"path": "", "shape": [2], "dtype": "float32", "shards": shards}]
    asked = replace(simulated)
    asked.__dict__["right"] = replace(simulated.right, expected=np.float32([1, 2]))
    assert judged(asked, told_of((), (7, 8, 9, 10), outputs=outputs)).code == "REPLICAS"


def test_a_value_that_cannot_be_is_no_result():
    asked = question("halves")
    for value in ({"$key": float("inf")}, [{"$array": [0, [8], "bool"]}] * 2):
        verdict = judged(asked, Frame({"value": value}, (bytes(8),)))
        assert verdict.code == "RTE"
        assert verdict.what.startswith("Something else than a result came back")


def test_an_exception_about_an_answer_is_a_verdict(simulated, monkeypatch):
    monkeypatch.setattr("shardlab.judge.case_result.grade", lambda *given: 1 // 0)
    frame = told_of(range(4), range(4))
    assert made_of(simulated, frame, None, SOURCE).code == "RTE"
    exported = replace(simulated, case=replace(simulated.case, is_simulated=False))
    assert made_of(exported, Frame({}), frame, SOURCE).code == "IE"


def test_rows_without_elements_are_told_without_being_counted():
    many = np.zeros((1 << 40, 0), np.float32)
    assert numbers(many) == "[]"
    assert value_text(many) == "float32[1099511627776,0] []"
