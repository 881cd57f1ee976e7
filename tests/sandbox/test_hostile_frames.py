"""Frames from a confined process, fuzzed: whatever arrives, it is read or it is a `InvalidFrame`."""

from __future__ import annotations

import json
import os
import struct
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.judge.protocol.run_result import read_seen, read_value
from shardlab.judge.protocol.values import ArrayLeaf, array_from, pack, unpack
from shardlab.sandbox.frame import Frame, InvalidFrame, frame_bytes, parse_frame, read_frame

numbers = st.integers(-(2**70), 2**70) | st.floats() | st.booleans() | st.none()
words = st.sampled_from(
    ["$array", "$tuple", "$dict", "$slice", "$spec", "$key", "$float", "float32", "object", "nan"]
) | st.text(max_size=8)
anything = st.recursive(
    numbers | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=3),
    max_leaves=12,
)
buffers = st.lists(st.binary(max_size=64), max_size=4).map(tuple)

SEEN = {
    "outputs": [
        {
            "path": "",
            "shape": [4],
            "dtype": "float32",
            "shards": [
                {"device": 0, "ranges": [[0, 2]]},
                {"device": 1, "ranges": [[2, 4]]},
            ],
        }
    ],
    "calls": [{"op": "psum", "shape": [2], "dtype": "f32", "count": 1, "group_size": 2}],
    "peak_bytes": 100,
    "has_shard_map": True,
}
HALVES = (np.arange(2, dtype="float32").tobytes(), np.arange(2, 4, dtype="float32").tobytes())


def or_bad_frame(read, *arguments):
    """Return what is read, or that it is a bad frame; raise anything else."""
    try:
        return read(*arguments)
    except InvalidFrame as error:
        return error


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_bytes_are_a_frame_or_a_bad_frame(data):
    or_bad_frame(parse_frame, data)


@given(st.binary(max_size=60), st.integers(-4, 4), st.binary(max_size=8))
@settings(deadline=None)
def test_lengths_that_lie_are_found(header, more, body):
    start = struct.pack("<II", max(len(header) + more, 0), len(body))
    or_bad_frame(parse_frame, start + header + body)


@given(anything, st.binary(max_size=20))
@settings(deadline=None)
def test_any_json_is_a_header_or_not(data, body):
    header = json.dumps({"sizes": data}).encode()
    or_bad_frame(parse_frame, struct.pack("<II", len(header), len(body)) + header + body)


@given(anything)
@settings(deadline=None)
def test_any_json_is_a_value_or_not(data):
    or_bad_frame(unpack, data, lambda leaf: array_from(leaf, b"1234"))


@given(anything, buffers)
@settings(deadline=None)
def test_any_answer_has_a_value_or_not(data, parts):
    or_bad_frame(read_value, Frame({"value": data}, parts))


@st.composite
def nearly_seen(draw):
    """Return a right answer of a runner with one part of it exchanged."""
    told = json.loads(json.dumps(SEEN))
    places = [(told, key) for key in told]
    places += [(told["outputs"][0], key) for key in told["outputs"][0]]
    places += [(told["outputs"][0]["shards"][0], key) for key in ("device", "ranges")]
    places += [(told["outputs"][0]["shards"], 1), (told["outputs"], 0), (told["calls"], 0)]
    places += [(told["calls"][0], key) for key in told["calls"][0]]
    where, key = draw(st.sampled_from(places))
    where[key] = draw(anything)
    return Frame(told, draw(st.just(HALVES) | buffers))


def test_the_right_answer_is_read():
    seen = read_seen(Frame(SEEN, HALVES), (1, 0))
    assert [shard.values.tolist() for shard in seen.outputs[0].shards] == [[0, 1], [2, 3]]


@given(nearly_seen())
@settings(deadline=None, max_examples=400)
def test_a_forged_run_is_read_or_refused(frame):
    or_bad_frame(read_seen, frame, (0, 1))


@pytest.mark.parametrize(
    ("leaf", "buffer"),
    [
        (ArrayLeaf(0, (1,), "object"), b"12345678"),
        (ArrayLeaf(0, (1,), "O"), b"12345678"),
        (ArrayLeaf(0, (1,), "V8"), b"12345678"),
        (ArrayLeaf(0, (1 << 62,), "float32"), b""),
        (ArrayLeaf(0, (-1,), "float32"), b""),
        (ArrayLeaf(0, (-1, -1), "int8"), b"1"),
        (ArrayLeaf(0, (0, 1 << 80), "int8"), b""),
        (ArrayLeaf(0, (0, 1 << 40, 1 << 40), "int8"), b""),
        (ArrayLeaf(0, (1,) * 100, "int8"), b"1"),
    ],
)
def test_arrays_that_are_none_are_refused(leaf, buffer):
    with pytest.raises(InvalidFrame):
        array_from(leaf, buffer)


@given(st.lists(st.floats(width=32), max_size=6), st.booleans())
@settings(deadline=None)
def test_what_is_packed_comes_back(values, as_tuple):
    array = np.array(values, "float32")
    data, arrays = pack({"x": (array,) if as_tuple else [array]})
    frame = Frame({"value": data}, tuple(each.tobytes() for each in arrays))
    back = read_value(parse_frame(frame_bytes(frame)))["x"]
    assert isinstance(back, tuple if as_tuple else list)
    np.testing.assert_array_equal(back[0], array)


def test_a_pipe_that_breaks_in_the_middle_is_a_bad_frame():
    reads, writes = os.pipe()
    data = frame_bytes(Frame({"x": 1}, (b"abc",)))

    def write():
        os.write(writes, data + data[:-1])
        os.close(writes)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert read_frame(reads) == Frame({"x": 1}, (b"abc",))
        with pytest.raises(InvalidFrame, match="cut off"):
            read_frame(reads)
    finally:
        thread.join()
        os.close(reads)
