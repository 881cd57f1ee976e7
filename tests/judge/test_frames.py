"""Frames: what goes in comes out, and whatever else arrives is a InvalidFrame, never another error."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from shardlab.judge.protocol.values import (
    DTYPES,
    MAX_DEPTH,
    MAX_NODES,
    ArrayLeaf,
    Key,
    array_bytes,
    array_from_buffer,
    pack_value,
    unpack_value,
)
from shardlab.sandbox import frame as frames
from shardlab.sandbox.frame import (
    Frame,
    InvalidFrame,
    frame_bytes,
    parse_frame,
    read_frame,
    write_frame,
)
from shardlab.sharding.spec import Spec

WORDS = st.text(max_size=8)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    WORDS,
    st.builds(slice, st.integers(), st.integers(), st.none() | st.integers()),
    st.builds(Key, st.integers(0, 2**31)),
    st.sampled_from([Spec(), Spec("data", None), Spec(("a", "b"))]),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(WORDS | st.tuples(st.integers(), WORDS), inner, max_size=4),
    ),
    max_leaves=12,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            WORDS
            | st.sampled_from(["$float", "$tuple", "$dict", "$slice", "$spec", "$key", "$array"]),
            inner,
            max_size=2,
        )
    ),
    max_leaves=12,
)


@given(VALUES)
def test_a_value_comes_out_as_it_went_in(value):
    data, numbers = pack_value(value)
    assert numbers == []
    assert unpack_value(json.loads(json.dumps(data)), lambda leaf: None) == value


@given(arrays.arrays(st.sampled_from([*DTYPES.values()]), arrays.array_shapes(min_dims=0)))
def test_an_array_travels_bit_for_bit(array):
    data, numbers = pack_value({"x": (array,)})
    buffers = [array_bytes(each) for each in numbers]
    got = unpack_value(data, lambda leaf: array_from_buffer(leaf, buffers[leaf.number]))["x"][0]
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    assert got.tobytes() == array.tobytes()


@given(st.binary(max_size=64))
def test_any_bytes_are_a_frame_or_a_bad_one(data):
    for piece in (data, frame_bytes(Frame({"case": 1}, (b"abc",)))[: len(data)] + data):
        with contextlib.suppress(InvalidFrame):
            parse_frame(piece)


@settings(max_examples=300)
@given(JSON)
def test_any_json_is_a_value_or_a_bad_one(data):
    with contextlib.suppress(InvalidFrame):
        unpack_value(data, lambda leaf: array_from_buffer(leaf, b"\0" * 8))


@given(JSON)
def test_any_header_is_a_frame_or_a_bad_one(header):
    text = json.dumps(header).encode()
    with contextlib.suppress(InvalidFrame):
        parse_frame(struct.pack("<II", len(text), 0) + text)


def started(text, n_body=0):
    return struct.pack("<II", len(text), n_body) + text


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cut off"),
        (b"\1\0\0\0", "cut off"),
        (struct.pack("<II", 2**32 - 1, 0), "too long"),
        (struct.pack("<II", 2, 2**32 - 1), "too long"),
        (started(b"[" * 100_000), "not JSON"),
        (started(b'{"a": ' * 50_000), "not JSON"),
        (started(b"1" * 10_000), "not JSON"),
        (started(b"\xff{}"), "not JSON"),
        (started(b"[]"), "no list of sizes"),
        (started(b'{"sizes": [-1]}'), "no list of sizes"),
        (started(b'{"sizes": [true]}', 1) + b"x", "no list of sizes"),
        (started(b'{"sizes": [3]}', 2) + b"xy", "do not add up"),
    ],
)
def test_a_hostile_frame_is_refused(data, words):
    with pytest.raises(InvalidFrame, match=words):
        parse_frame(data)


def test_text_that_no_file_can_hold_is_made_one_that_can():
    sent = Frame({"words": "\ud800 and \U0001f600", "\udfff": ["\ud83d"]})
    got = parse_frame(frame_bytes(sent))
    assert got.header == {"words": "? and \U0001f600", "?": ["?"]}
    str(got.header).encode("utf-8")


def test_a_length_beyond_the_cap_is_refused_before_anything_is_read():
    reads, writes = os.pipe()
    os.write(writes, struct.pack("<II", 8, frames.MAX_BODY + 1))
    with pytest.raises(InvalidFrame, match="too long"):
        read_frame(reads)  # would wait for ever if it tried
    os.close(reads)
    os.close(writes)


def test_a_pipe_that_ends_inside_of_a_frame_is_a_bad_frame_and_between_two_is_the_end():
    reads, writes = os.pipe()
    sent = Frame({"case": 3}, (b"x" * 300_000, b""))  # more than a pipe holds
    threading.Thread(target=write_frame, args=(writes, sent)).start()
    assert read_frame(reads) == sent
    os.write(writes, frame_bytes(sent)[:50])
    os.close(writes)
    with pytest.raises(InvalidFrame, match="cut off"):
        read_frame(reads)
    assert read_frame(reads) is None
    os.close(reads)


def nested(depth):
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    "data",
    [
        nested(MAX_DEPTH + 2),
        [0] * (MAX_NODES + 1),
        {"$object": []},
        {"$tuple": [], "$dict": []},
        {"$tuple": 3},
        {"$dict": [[[1], 2]]},
        {"$slice": [0, "1", None]},
        {"$array": [0, [-1], "float32"]},
        {"$array": [0, [2], "object"]},
        {"$array": [0, [2], "float64"]},
        {"$array": [0, [1] * 70 + [8], "bool"]},
        {"$array": [0, [2**62, 0], "bool"]},
        {"$array": [0, [2**29, 0], "bool"]},
        {"$key": "seed"},
        {"$key": float("inf")},
        {"$spec": [[1]]},
    ],
    ids=lambda data: str(data)[:30],
)
def test_a_hostile_value_is_refused(data):
    with pytest.raises(InvalidFrame):
        unpack_value(data, lambda leaf: array_from_buffer(leaf, b"\0" * 8))


def test_a_value_of_another_kind_does_not_leave():
    with pytest.raises(InvalidFrame, match="a set cannot travel"):
        pack_value({"x": {1, 2}})
    with pytest.raises(InvalidFrame, match="a object cannot travel"):
        pack_value(object())


def test_bfloat16_travels_too():
    import ml_dtypes

    array = np.arange(4).astype(ml_dtypes.bfloat16)
    (leaf,) = [ArrayLeaf(0, (4,), "bfloat16")]
    assert array_from_buffer(leaf, array_bytes(pack_value(array)[1][0])).tolist() == [0, 1, 2, 3]


def test_whole_numbers_of_numpy_travel_as_whole_numbers():
    data, arrays = pack_value({(np.int64(1), 0): slice(np.int32(2), np.int64(4))})
    assert not arrays
    assert unpack_value(data, lambda leaf: None) == {(1, 0): slice(2, 4)}


def test_a_slice_of_something_else_cannot_travel():
    with pytest.raises(InvalidFrame, match="a slice of float cannot travel"):
        pack_value(slice(0.5, 1))
