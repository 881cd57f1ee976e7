"""Submissions on meshes that are too large to run: every virtual device, replicas, deadlocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from worker_bench import full_arrays

from shardlab.judge.protocol.run_result import encode_outputs

RIGHT = Path(__file__).with_name("right_submissions.py").read_text("utf-8")
X = np.arange(512 * 3, dtype=np.float32).reshape(512, 3) % 7


@pytest.fixture(autouse=True)
def loaded(bench):
    assert bench.load(RIGHT) is None


def test_every_device_has_its_shard(bench):
    result = bench.simulate("sharded_double", "data=512", x=X).result
    shards = result.outputs[0].shards
    assert [shard.device for shard in shards] == list(range(512))
    assert shards[300].ranges == ((300, 301), (0, 3))
    np.testing.assert_array_equal(full_arrays(result)[0], 2 * X)


def test_a_replicated_result_is_sent_once(bench):
    result = bench.simulate("all_gather_rows", "data=64", x=X).result
    (output,) = result.outputs
    assert len(output.shards) == 64
    _, buffers = encode_outputs(result.outputs)
    assert len(buffers) == 1
    (call,) = result.collectives
    assert (call.op, call.payload_bytes, call.group_size) == ("all_gather", 96, 64)


def test_replicas_that_differ_are_reported_for_every_device(bench):
    response = bench.simulate("differing_replicas", "data=64", x=X)
    values = [float(shard.values) for shard in response.result.outputs[0].shards]
    assert values == [X[i : i + 8].sum() for i in range(0, 512, 8)]
    assert [finding.code for finding in response.findings] == ["hazard.replicas_differ"]


def test_replicas_that_differ_inside_are_a_finding(bench):
    (finding,) = bench.simulate("differing_replicas_inside", "data=64", x=X).findings
    assert finding.code == "hazard.replicas_differ"
    assert finding.severity == "error"


def test_a_deadlock_is_found_before_anything_runs(bench):
    bench.load(
        RIGHT
        + """
def hangs(x, mesh):
    (a, *_) = mesh.axis_names
    def body(x):
        return lax.cond(x.sum() > 3, lambda x: lax.psum(x, a), lambda x: x, x)
    return call_shard_map(mesh, body, P(a), P(a), x, check_vma=False)
"""
    )
    simulated = bench.simulate("hangs", "data=64", x=X)
    exported = bench.export("hangs", "data=4", x=X)
    assert (simulated.result, exported.program) == (None, b"")
    for response in (simulated, exported):
        assert [finding.code for finding in response.findings] == ["hazard.deadlock"]
