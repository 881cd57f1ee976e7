"""Frames and values: they are received as sent, and anything else raises `InvalidFrame`."""

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
def test_a_value_is_received_as_it_was_sent(value):
    data, numbers = pack_value(value)
    assert numbers == []
    assert unpack_value(json.loads(json.dumps(data)), lambda leaf: None) == value


@given(arrays.arrays(st.sampled_from([*DTYPES.values()]), arrays.array_shapes(min_dims=0)))
def test_an_array_is_sent_bit_for_bit(array):
    data, numbers = pack_value({"x": (array,)})
    buffers = [array_bytes(array) for array in numbers]
    received = unpack_value(data, lambda leaf: array_from_buffer(leaf, buffers[leaf.number]))["x"][
        0
    ]
    assert (received.dtype, received.shape) == (array.dtype, array.shape)
    assert received.tobytes() == array.tobytes()


@given(st.binary(max_size=64))
def test_any_bytes_are_a_frame_or_invalid(data):
    for candidate in (data, frame_bytes(Frame({"case": 1}, (b"abc",)))[: len(data)] + data):
        with contextlib.suppress(InvalidFrame):
            parse_frame(candidate)


@settings(max_examples=300)
@given(JSON)
def test_any_packed_json_is_a_value_or_invalid(data):
    with contextlib.suppress(InvalidFrame):
        unpack_value(data, lambda leaf: array_from_buffer(leaf, b"\0" * 8))


@given(JSON)
def test_any_header_is_a_frame_or_invalid(header):
    text = json.dumps(header).encode()
    with contextlib.suppress(InvalidFrame):
        parse_frame(struct.pack("<II", len(text), 0) + text)


def with_lengths(text, n_body=0):
    return struct.pack("<II", len(text), n_body) + text


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "truncated"),
        (b"\1\0\0\0", "truncated"),
        (struct.pack("<II", 2**32 - 1, 0), "too long"),
        (struct.pack("<II", 2, 2**32 - 1), "too long"),
        (with_lengths(b"[" * 100_000), "not JSON"),
        (with_lengths(b'{"a": ' * 50_000), "not JSON"),
        (with_lengths(b"1" * 10_000), "not JSON"),
        (with_lengths(b"\xff{}"), "not JSON"),
        (with_lengths(b"[]"), "no list of sizes"),
        (with_lengths(b'{"sizes": [-1]}'), "no list of sizes"),
        (with_lengths(b'{"sizes": [true]}', 1) + b"x", "no list of sizes"),
        (with_lengths(b'{"sizes": [3]}', 2) + b"xy", "do not add up"),
    ],
)
def test_a_hostile_frame_is_invalid(data, message):
    with pytest.raises(InvalidFrame, match=message):
        parse_frame(data)


def test_lone_surrogates_are_replaced():
    sent = Frame({"words": "\ud800 and \U0001f600", "\udfff": ["\ud83d"]})
    received = parse_frame(frame_bytes(sent))
    assert received.header == {"words": "? and \U0001f600", "?": ["?"]}
    str(received.header).encode("utf-8")


def test_a_length_beyond_the_limit_is_invalid_before_anything_is_read():
    reads, writes = os.pipe()
    os.write(writes, struct.pack("<II", 8, frames.MAX_BODY + 1))
    with pytest.raises(InvalidFrame, match="too long"):
        read_frame(reads)  # would block forever if it tried
    os.close(reads)
    os.close(writes)


def test_a_pipe_that_ends_inside_a_frame_is_invalid_and_between_two_is_the_end():
    reads, writes = os.pipe()
    sent = Frame({"case": 3}, (b"x" * 300_000, b""))  # more than a pipe holds
    threading.Thread(target=write_frame, args=(writes, sent)).start()
    assert read_frame(reads) == sent
    os.write(writes, frame_bytes(sent)[:50])
    os.close(writes)
    with pytest.raises(InvalidFrame, match="truncated"):
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
def test_a_hostile_value_is_invalid(data):
    with pytest.raises(InvalidFrame):
        unpack_value(data, lambda leaf: array_from_buffer(leaf, b"\0" * 8))


def test_a_value_of_another_type_is_not_sent():
    with pytest.raises(InvalidFrame, match="a set cannot be sent"):
        pack_value({"x": {1, 2}})
    with pytest.raises(InvalidFrame, match="a object cannot be sent"):
        pack_value(object())


def test_bfloat16_is_sent():
    import ml_dtypes

    array = np.arange(4).astype(ml_dtypes.bfloat16)
    (leaf,) = [ArrayLeaf(0, (4,), "bfloat16")]
    assert array_from_buffer(leaf, array_bytes(pack_value(array)[1][0])).tolist() == [0, 1, 2, 3]


def test_integers_of_numpy_are_sent_as_integers():
    data, arrays = pack_value({(np.int64(1), 0): slice(np.int32(2), np.int64(4))})
    assert not arrays
    assert unpack_value(data, lambda leaf: None) == {(1, 0): slice(2, 4)}


def test_a_slice_of_floats_is_not_sent():
    with pytest.raises(InvalidFrame, match="a slice of float cannot be sent"):
        pack_value(slice(0.5, 1))
