"""Answers from source to what every device holds: exported by one guest, run by another."""

from __future__ import annotations

from pathlib import Path

import jax.export
import numpy as np
import pytest

from shardlab._jax.exported_program import read_contents
from shardlab.judge.protocol.values import Key
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec

RIGHT = Path(__file__).with_name("right_answers.py").read_text("utf-8")
X = np.arange(96, dtype=np.float32).reshape(12, 8)
W = np.arange(24, dtype=np.float32).reshape(8, 3) / 10


@pytest.fixture(autouse=True)
def loaded(bench):
    assert "error" not in bench.load(RIGHT)


def call(op, shape, dtype="float32", count=1, *, payload, wire, inserted=False, folded=False):
    return {
        "op": op,
        "shape": list(shape),
        "dtype": dtype,
        "count": count,
        "payload_bytes": payload,
        "wire_bytes": wire,
        "is_inserted": inserted,
        "is_folded": folded,
    }


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
        ("gathered", {"x": X}, X, [call("all_gather", (3, 8), payload=96, wire=288)]),
        (
            "scattered",
            {"x": X, "w": X.T},
            SQUARE,
            [call("psum_scatter", (12, 12), payload=576, wire=432)],
        ),
        ("swapped", {"x": X}, X, [call("all_to_all", (3, 8), payload=96, wire=72)]),
        (
            "rolled",
            {"x": X},
            np.roll(X, 9, 0),
            [call("ppermute", (3, 8), count=3, payload=96, wire=96)],
        ),
        # A CPU's compiler makes float32 of it, and twice the bytes.
        (
            "halved",
            {"x": X[:, :3] % 4},
            (X[:, :3] % 4).sum(0),
            [call("psum", (3,), "bfloat16", payload=6, wire=9)],
        ),
        ("unused_sum", {"x": X}, X, []),
        ("numbered", {"n": 24}, np.arange(24), []),
        (
            "in_context",
            {"x": X},
            X.reshape(4, 3, 8).sum(0),
            [call("psum", (3, 8), payload=96, wire=144)],
        ),
        ("jitted", {"x": X}, X.sum(), [call("psum", (), payload=4, wire=6)]),
        # The compiler's own, since nobody has called it.
        (
            "contracted",
            {"x": X, "w": W},
            X @ W,
            [call("psum", (12, 3), payload=144, wire=216, inserted=True)],
        ),
        # As large as it is, though a small one was called that nothing is left of.
        (
            "contracted_beside_a_sum_of_nothing",
            {"x": X, "w": W},
            X @ W,
            [
                call("psum", (), "int32", payload=4, wire=6, folded=True),
                call("psum", (12, 3), payload=144, wire=216, inserted=True),
            ],
        ),
        (
            "contracted_beside_bytes_of_nothing",
            {"x": X, "w": W},
            X @ W,
            [
                call("psum", (12, 3), "int8", payload=36, wire=54, folded=True),
                call("psum", (12, 3), payload=144, wire=216, inserted=True),
            ],
        ),
        (
            "rolled_until",
            {"x": X},
            np.roll(X, 9, 0),
            [
                call("pmax", (), payload=4, wire=6),
                call("ppermute", (3, 8), count=None, payload=96, wire=96),
            ],
        ),
        ("kept", {"x": X}, 2 * X, []),
        ("placed", {"x": X, "spec": Spec("data", None)}, X, []),
        ("placed_on_explicit_axes", {"x": X, "spec": Spec("data", None)}, X, []),
        ("constant", {"x": X}, np.float32(3.5), []),
    ],
)
def test_values_and_collectives(bench, function, inputs, expected, calls):
    seen = bench.run(function, "data=4", **inputs)
    wanted = expected if isinstance(expected, tuple) else (expected,)
    assert len(seen["outputs"]) == len(wanted)
    for output, want in zip(seen["outputs"], wanted, strict=True):
        np.testing.assert_allclose(np.asarray(output["whole"], np.float32), want, rtol=1e-5)
    told = [{key: each[key] for key in call("", (), payload=0, wire=0)} for each in seen["calls"]]
    assert told == calls


def test_a_loop_that_counts_down_has_no_known_length(bench):
    made = bench.author("export", "rolled_for_ever", "data=4", x=X)
    (found,) = read_contents(jax.export.deserialize(bytearray(made.buffers[0]))).collectives
    assert (found.op, found.count) == ("ppermute", None)


@pytest.mark.parametrize("function", ["gradient", "gradient_inside"])
def test_gradients_inside_and_outside_of_shard_map(bench, function):
    seen = bench.run(function, "data=4", x=X, w=W)
    loss, slope = seen["outputs"]
    np.testing.assert_allclose(loss["whole"], np.mean((X @ W) ** 2), rtol=1e-5)
    np.testing.assert_allclose(slope["whole"], X.T @ (X @ W) * 2 / 36, rtol=1e-4)
    # One for the loss, one for the gradient; the combiner of a CPU would have made one of them.
    assert [(each["op"], each["is_inserted"]) for each in seen["calls"]] == [("psum", False)] * 2


def test_each_device_is_seen_with_the_piece_that_it_holds(bench):
    seen = bench.run("kept", "data=2,model=2", x=X)
    shards = seen["outputs"][0]["shards"]
    assert [shard["ranges"][0] for shard in shards] == [[0, 6], [0, 6], [6, 12], [6, 12]]
    assert [shard.get("same_as") for shard in shards] == [None, 0, None, 2]
    np.testing.assert_array_equal(shards[3]["values"], 2 * X[6:])


def test_copies_that_differ_travel_each_for_itself(bench):
    seen = bench.run("differing", "data=4", x=X)
    held = [float(shard["values"]) for shard in seen["outputs"][0]["shards"]]
    assert held == [X[i : i + 3].sum() for i in (0, 3, 6, 9)]


def test_devices_in_another_order_hold_what_the_mesh_says(bench):
    seen = bench.run("kept", Mesh({"data": 4}, device_ids=[3, 1, 0, 2]), x=X)
    first = {shard["device"]: shard["ranges"][0][0] for shard in seen["outputs"][0]["shards"]}
    assert first == {3: 0, 1: 3, 0: 6, 2: 9}


def test_peak_bytes_are_arguments_results_and_temporaries(bench):
    seen = bench.run("kept", "data=4", x=X)
    assert seen["peak_bytes"] >= X.nbytes + X.nbytes // 4
    assert seen["peak_bytes"] < 3 * X.nbytes


def test_a_shard_map_is_told_from_none(bench):
    assert bench.run("total", "data=2", x=X)["has_shard_map"]
    assert not bench.run("kept", "data=2", x=X)["has_shard_map"]


def test_on_one_device_only_the_trace_tells_of_a_shard_map(bench):
    made = bench.author("export", "total", "data=1", x=X)
    assert made.header["n_shard_maps"] == 1
    # The day this fails, the program itself can be asked there too.
    assert not bench.runner(made.buffers[0], "data=1", None, X)["has_shard_map"]


def test_without_a_mesh_the_answer_sees_one_device(bench):
    seen = bench.run("all_devices", x=X)
    assert [shard["device"] for shard in seen["outputs"][0]["shards"]] == [0]
    assert seen["outputs"][0]["whole"] == X.sum()


def test_keys_modules_and_trees_arrive_and_leave(bench):
    masked = bench.run("dropped", "data=4", key=Key(3), x=X + 1)["outputs"][0]["whole"]
    blocks = masked.reshape(4, 3, 8) != 0
    assert not (blocks == blocks[0]).all()
    assert bench.run("linear", "data=4", x=X)["outputs"][0]["shape"] == [12, 3]
    leaves = [each["path"] for each in bench.run("parameters", seed=1)["outputs"]]
    assert leaves == ["['bias']", "['kernel']"]
    leaves = [each["path"] for each in bench.run("unchanged", "data=2", x=X)["outputs"]]
    assert leaves == ["['pair'][0]", "['pair'][1][0]", "['x']"]
    leaves = [each["path"] for each in bench.run("classes", "data=2", x=X)["outputs"]]
    assert leaves == ["['left']", "['right.first']"]
    assert bench.run("key_of", seed=7)["outputs"][0]["whole"].tolist() == [0, 7]


def test_plain_values_come_back_as_they_are(bench):
    bench.load("def f(a, b):\n    return {(a, 0): [slice(0, b), 'x', 1.5]}\n")
    assert bench.author("call", "f", a=2, b=3).header["value"] == {
        "$dict": [[{"$tuple": [2, 0]}, [{"$slice": [0, 3, None]}, "x", 1.5]]]
    }
