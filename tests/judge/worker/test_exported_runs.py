"""Submissions from source to the shards of every device: exported by the tracer, then run."""

from __future__ import annotations

from pathlib import Path

import jax.export
import numpy as np
import pytest
from worker_bench import full_arrays

from shardlab._jax.exported_program import read_contents
from shardlab.judge.protocol.run_result import CollectiveRecord, encode_outputs
from shardlab.judge.protocol.values import Key
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec

RIGHT = Path(__file__).with_name("right_submissions.py").read_text("utf-8")
X = np.arange(96, dtype=np.float32).reshape(12, 8)
W = np.arange(24, dtype=np.float32).reshape(8, 3) / 10


@pytest.fixture(autouse=True)
def loaded(bench):
    assert bench.load(RIGHT) is None


def call(op, shape, dtype="float32", count=1, *, payload, wire, inserted=False, folded=False):
    record = CollectiveRecord(
        op=op,
        shape=tuple(shape),
        dtype=dtype,
        count=count,
        group_size=2 if op == "ppermute" else 4,
        is_inserted=inserted,
        is_folded=folded,
    )
    # The judge computes both from the operand.
    assert (record.payload_bytes, record.wire_bytes) == (payload, wire)
    return record


SQUARE = X @ X.T


@pytest.mark.parametrize(
    ("function", "inputs", "expected", "calls"),
    [
        ("total", {"x": X}, X.sum(), [call("psum", (), payload=4, wire=6)]),
        (
            "extremes",
            {"x": X},
            (X.max(), X.min()),
            [call("pmax", (), payload=4, wire=6), call("pmin", (), payload=4, wire=6)],
        ),
        ("all_gather_rows", {"x": X}, X, [call("all_gather", (3, 8), payload=96, wire=288)]),
        (
            "reduce_scatter_rows",
            {"x": X, "w": X.T},
            SQUARE,
            [call("psum_scatter", (12, 12), payload=576, wire=432)],
        ),
        ("all_to_all_rows", {"x": X}, X, [call("all_to_all", (3, 8), payload=96, wire=72)]),
        (
            "roll_rows",
            {"x": X},
            np.roll(X, 9, 0),
            [call("ppermute", (3, 8), count=3, payload=96, wire=96)],
        ),
        # The CPU compiler widens it to float32, with twice the bytes.
        (
            "bfloat16_sum",
            {"x": X[:, :3] % 4},
            (X[:, :3] % 4).sum(0),
            [call("psum", (3,), "bfloat16", payload=6, wire=9)],
        ),
        ("unused_sum", {"x": X}, X, []),
        ("global_index", {"n": 24}, np.arange(24), []),
        (
            "set_mesh_context",
            {"x": X},
            X.reshape(4, 3, 8).sum(0),
            [call("psum", (3, 8), payload=96, wire=144)],
        ),
        ("jitted_total", {"x": X}, X.sum(), [call("psum", (), payload=4, wire=6)]),
        # Inserted by the compiler: the program calls none.
        (
            "contraction",
            {"x": X, "w": W},
            X @ W,
            [call("psum", (12, 3), payload=144, wire=216, inserted=True)],
        ),
        # Counted in full, although the program calls a small one that is folded away.
        (
            "contraction_and_folded_scalar",
            {"x": X, "w": W},
            X @ W,
            [
                call("psum", (), "int32", payload=4, wire=6, folded=True),
                call("psum", (12, 3), payload=144, wire=216, inserted=True),
            ],
        ),
        (
            "contraction_and_folded_int8",
            {"x": X, "w": W},
            X @ W,
            [
                call("psum", (12, 3), "int8", payload=36, wire=54, folded=True),
                call("psum", (12, 3), payload=144, wire=216, inserted=True),
            ],
        ),
        (
            "roll_until",
            {"x": X},
            np.roll(X, 9, 0),
            [
                call("pmax", (), payload=4, wire=6),
                call("ppermute", (3, 8), count=None, payload=96, wire=96),
            ],
        ),
        ("sharded_double", {"x": X}, 2 * X, []),
        ("device_put_result", {"x": X, "spec": Spec("data", None)}, X, []),
        ("device_put_on_explicit_axes", {"x": X, "spec": Spec("data", None)}, X, []),
        ("constant", {"x": X}, np.float32(3.5), []),
    ],
)
def test_values_and_collectives(bench, function, inputs, expected, calls):
    result = bench.run(function, "data=4", **inputs)
    arrays = expected if isinstance(expected, tuple) else (expected,)
    assert len(result.outputs) == len(arrays)
    for actual, array in zip(full_arrays(result), arrays, strict=True):
        np.testing.assert_allclose(np.asarray(actual, np.float32), array, rtol=1e-5)
    assert list(result.collectives) == calls


def test_a_loop_that_counts_down_has_no_known_length(bench):
    program = bench.export("roll_forever", "data=4", x=X).program
    (collective,) = read_contents(jax.export.deserialize(bytearray(program))).collectives
    assert (collective.op, collective.count) == ("ppermute", None)


@pytest.mark.parametrize("function", ["gradient", "gradient_inside"])
def test_gradients_inside_and_outside_of_shard_map(bench, function):
    result = bench.run(function, "data=4", x=X, w=W)
    loss, slope = full_arrays(result)
    np.testing.assert_allclose(loss, np.mean((X @ W) ** 2), rtol=1e-5)
    np.testing.assert_allclose(slope, X.T @ (X @ W) * 2 / 36, rtol=1e-4)
    # One for the loss, one for the gradient; the combiner of the CPU compiler would merge them.
    assert [(c.op, c.is_inserted) for c in result.collectives] == [("psum", False)] * 2


def test_each_device_has_the_shard_that_it_holds(bench):
    result = bench.run("sharded_double", "data=2,model=2", x=X)
    shards = result.outputs[0].shards
    assert [shard.ranges[0] for shard in shards] == [(0, 6), (0, 6), (6, 12), (6, 12)]
    np.testing.assert_array_equal(shards[3].values, 2 * X[6:])
    (data,), buffers = encode_outputs(result.outputs)
    assert [shard.get("same_as") for shard in data["shards"]] == [None, 0, None, 2]
    assert len(buffers) == 2


def test_replicas_that_differ_are_sent_one_by_one(bench):
    result = bench.run("differing_replicas", "data=4", x=X)
    values = [float(shard.values) for shard in result.outputs[0].shards]
    assert values == [X[i : i + 3].sum() for i in (0, 3, 6, 9)]


def test_devices_in_another_order_hold_what_the_mesh_says(bench):
    result = bench.run("sharded_double", Mesh({"data": 4}, device_ids=[3, 1, 0, 2]), x=X)
    first_rows = {shard.device: shard.ranges[0][0] for shard in result.outputs[0].shards}
    assert first_rows == {3: 0, 1: 3, 0: 6, 2: 9}


def test_peak_bytes_are_arguments_results_and_temporaries(bench):
    result = bench.run("sharded_double", "data=4", x=X)
    assert result.peak_bytes >= X.nbytes + X.nbytes // 4
    assert result.peak_bytes < 3 * X.nbytes


def test_a_shard_map_is_told_from_none(bench):
    assert bench.run("total", "data=2", x=X).has_shard_map
    assert not bench.run("sharded_double", "data=2", x=X).has_shard_map


def test_on_one_device_only_the_trace_shows_a_shard_map(bench):
    exported = bench.export("total", "data=1", x=X)
    assert exported.flow.constructs == ("psum", "shard_map")
    # The day this fails, the program itself can be checked there too.
    response = bench.run_program(exported.program, "data=1", None, X)
    assert not response.result.has_shard_map


def test_without_a_mesh_the_submission_sees_one_device(bench):
    result = bench.run("total_on_all_devices", x=X)
    assert [shard.device for shard in result.outputs[0].shards] == [0]
    assert full_arrays(result)[0] == X.sum()


def output_paths(result):
    return [output.path for output in result.outputs]


def test_keys_modules_and_trees_are_sent_and_returned(bench):
    (masked,) = full_arrays(bench.run("dropout", "data=4", key=Key(3), x=X + 1))
    blocks = masked.reshape(4, 3, 8) != 0
    assert not (blocks == blocks[0]).all()
    assert bench.run("linear", "data=4", x=X).outputs[0].shape == (12, 3)
    assert output_paths(bench.run("parameters", seed=1)) == ["['bias']", "['kernel']"]
    paths = output_paths(bench.run("nested_containers", "data=2", x=X))
    assert paths == ["['pair'][0]", "['pair'][1][0]", "['x']"]
    paths = output_paths(bench.run("class_instances", "data=2", x=X))
    assert paths == ["['first']", "['second.first']"]
    assert full_arrays(bench.run("random_key", seed=7))[0].tolist() == [0, 7]


def test_plain_values_are_returned_as_they_are(bench):
    bench.load("def f(a, b):\n    return {(a, 0): [slice(0, b), 'x', 1.5]}\n")
    response = bench.call("f", a=2, b=3)
    assert response.packed_value == {
        "$dict": [[{"$tuple": [2, 0]}, [{"$slice": [0, 3, None]}, "x", 1.5]]]
    }
    assert response.value() == {(2, 0): [slice(0, 3), "x", 1.5]}
