"""Answers on meshes that are too large to run: every virtual device, copies that differ, hangs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cell_bench import opened

RIGHT = Path(__file__).with_name("right_answers.py").read_text("utf-8")
X = np.arange(512 * 3, dtype=np.float32).reshape(512, 3) % 7


@pytest.fixture(autouse=True)
def loaded(bench):
    assert "error" not in bench.load(RIGHT)


def simulate(bench, function, mesh, **inputs):
    return opened(bench.author("simulate", function, mesh, **inputs))


def test_every_device_has_its_piece(bench):
    seen = simulate(bench, "kept", "data=512", x=X)
    shards = seen["outputs"][0]["shards"]
    assert [shard["device"] for shard in shards] == list(range(512))
    assert shards[300]["ranges"] == [[300, 301], [0, 3]]
    np.testing.assert_array_equal(seen["outputs"][0]["whole"], 2 * X)


def test_a_replicated_result_travels_once(bench):
    answer = bench.author("simulate", "gathered", "data=64", x=X)
    assert len(answer.buffers) == 1
    assert len(answer.header["outputs"][0]["shards"]) == 64
    (call,) = answer.header["calls"]
    assert (call["op"], call["payload_bytes"], call["group_size"]) == ("all_gather", 96, 64)


def test_copies_that_differ_are_seen_on_every_device(bench):
    seen = simulate(bench, "differing", "data=64", x=X)
    held = [float(shard["values"]) for shard in seen["outputs"][0]["shards"]]
    assert held == [X[i : i + 8].sum() for i in range(0, 512, 8)]
    assert [found["code"] for found in seen["findings"]] == ["hazard.replicas_differ"]


def test_copies_that_differ_inside_are_a_finding(bench):
    seen = simulate(bench, "differing_inside", "data=64", x=X)
    (found,) = seen["findings"]
    assert found["code"] == "hazard.replicas_differ"
    assert found["severity"] == "error"


def test_a_hang_is_found_before_anything_runs(bench):
    bench.load(
        RIGHT
        + """
def hangs(x, mesh):
    (a, *_) = mesh.axis_names
    def body(x):
        return lax.cond(x.sum() > 3, lambda x: lax.psum(x, a), lambda x: x, x)
    return mapped(mesh, body, P(a), P(a), x, check_vma=False)
"""
    )
    for do, mesh in (("simulate", "data=64"), ("export", "data=4")):
        answer = bench.author(do, "hangs", mesh, x=X)
        assert not answer.buffers
        assert [found["code"] for found in answer.header["findings"]] == ["hazard.deadlock"]
