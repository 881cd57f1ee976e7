"""The judge against guests that answer anything: it always comes to a judgement, never to a pass.

The guests here are not processes: what a hostile process can send is a frame, and these send any.
"""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_hostile_frames import HALVES, SEEN, anything, buffers

import shardlab
from shardlab.catalogue.problem import load_problem
from shardlab.judge.judge import judge
from shardlab.sandbox.frame import Frame, InvalidFrame, frame_bytes, parse_frame

PROBLEMS = Path(shardlab.__file__).parent / "catalogue" / "problems"
PROBLEM = load_problem(PROBLEMS / "c-collectives" / "shard-map-psum")

FINDING = {
    "code": "hazard.deadlock",
    "severity": "error",
    "what": "Devices wait.",
    "where": {"line": 3},
    "fix": "do not.",
    "shows": [],
}
ERROR = {"kind": "ValueError", "words": "no", "line": 3, "parents": ["ValueError"]}
AUTHOR = {"findings": [FINDING], "error": ERROR, "value": 1, "defines": ["f"], "seen": SEEN}


class AnyHouse:
    """Guests whose every answer is drawn."""

    level = "C"

    def __init__(self, answers):
        self._answers = answers

    def guest(self, role, limits):
        return AnyGuest(self._answers[role])

    def close(self):
        pass


class AnyGuest:
    output = ""

    def __init__(self, answer):
        self._answer = answer

    def ask(self, request):
        return Frame({"defines": []}) if request.header["do"] == "load" else self._answer

    def close(self):
        pass


@st.composite
def nearly(draw, known):
    """Return some of the known parts of an answer, with one or two places exchanged."""
    told = json.loads(json.dumps({k: v for k, v in known.items() if draw(st.booleans())}))
    for _ in range(draw(st.integers(0, 2))):
        where = told
        while isinstance(where, (dict, list)) and where:
            keys = sorted(where) if isinstance(where, dict) else range(len(where))
            key = draw(st.sampled_from(keys))
            if draw(st.booleans()) or not isinstance(where[key], (dict, list)):
                where[key] = draw(anything)
                break
            where = where[key]
    frame = Frame(told, draw(st.just(HALVES) | st.just((b"program",)) | buffers))
    try:
        return parse_frame(frame_bytes(frame))  # as it would arrive
    except InvalidFrame:
        return Frame({})


@given(nearly(AUTHOR), nearly(SEEN))
@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
def test_whatever_guests_answer_there_is_a_judgement_and_it_is_no_pass(author, runner):
    house = AnyHouse({"author": author, "runner": runner})
    judgement = judge(house, PROBLEM, "def sharded_sum(x, mesh): pass", kind="run", seed=1)
    assert judgement.cases
    assert not judgement.passed
