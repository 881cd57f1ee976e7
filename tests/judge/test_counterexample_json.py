"""The minimal failing case as JSON: what each device holds, element by element."""

import json
import math

import pytest

from judge.small_problems import problem, shard_map_body, submission
from shardlab.judge.counterexample_json import counterexample_json
from shardlab.judge.judge import judge
from shardlab.judge.judgement import Judgement
from shardlab.judge.worker_pool import open_worker_pool


@pytest.fixture(scope="module")
def pool():
    with open_worker_pool() as opened:
        yield opened


def minimal_case(pool, name, body, **options):
    """Return the minimal failing case as it comes out of the store, as JSON."""
    options = {"meshes": ("data=2,model=2",), **options}
    judgement = judge(pool, problem(name, **options), submission(name, body), kind="run", seed=3)
    stored = Judgement.from_json(json.loads(json.dumps(judgement.to_json())))
    return json.loads(json.dumps(counterexample_json(stored.counterexample), allow_nan=False))


def test_wrong_elements_are_marked_on_their_devices(pool):
    # Doubles every element except the first one of the second shard.
    body = shard_map_body(
        "lambda y: (2 * y).at[0, 0].add(jnp.where(lax.axis_index(a) == 1, 1, 0))", out_specs="P(a)"
    )
    data = minimal_case(pool, "doubled", body)
    assert data["mesh"] == [["data", 2], ["model", 2]]
    assert data["verdicts"][0]["code"] == "WA"
    assert not data["is_right_everywhere"]
    (output,) = data["outputs"]
    assert output["n_devices"] == 4
    assert [device["coordinate"] for device in output["devices"]] == [
        [0, 0],
        [0, 1],
        [1, 0],
        [1, 1],
    ]
    assert [device["state"] for device in output["devices"]] == ["right"] * 2 + ["wrong"] * 2
    for device in output["devices"]:
        elements = device["elements"]
        assert len(elements["holds"]) == math.prod(elements["shape"])
        is_wrong = device["state"] == "wrong"
        assert elements["wrong"] == ([0] if is_wrong else [])
        assert (elements["holds"] != elements["expected"]) == is_wrong
        assert elements["holds"][1:] == elements["expected"][1:]


def test_values_that_look_the_same_are_told_apart_by_their_digits(pool):
    data = minimal_case(pool, "doubled", "\n    return 2 * x * jnp.float32(1.0001)")
    for device in data["outputs"][0]["devices"]:
        elements = device["elements"]
        for position in elements["wrong"]:
            assert elements["holds"][position] != elements["expected"][position]


def test_right_values_with_another_failure_are_right_everywhere(pool):
    body = shard_map_body("lambda y: lax.psum(jnp.sum(y), a) + 0 * lax.psum(jnp.sum(y * 2), a)")
    data = minimal_case(pool, "total", body, budget={"psum": 1})
    assert data["verdicts"][0]["code"] == "COMM"
    assert data["is_right_everywhere"]
    assert data["collectives"][0]["op"] == "psum"


def test_a_part_of_plain_values_has_what_it_returned(pool):
    data = minimal_case(pool, "halves", "\n    return [0] * n")
    assert data["mesh"] == data["outputs"] == []
    assert data["returned"].startswith("[0")
    assert data["expected"]
    assert {value["name"] for value in data["inputs"]} == {"total", "n"}


def test_a_case_of_an_earlier_version_has_no_elements(pool):
    body = shard_map_body("lambda y: 3 * y", out_specs="P(a)")
    judged = judge(pool, problem("doubled"), submission("doubled", body), kind="run", seed=3)
    data = json.loads(json.dumps(judged.counterexample.to_json()))
    del data["facts"]["mesh"]
    for device in data["facts"]["outputs"][0]["devices"]:
        del device["elements"], device["coordinate"]
    old = counterexample_json(type(judged.counterexample).from_json(data))
    assert old["outputs"][0]["devices"][0]["elements"] is None
