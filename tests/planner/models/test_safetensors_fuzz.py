"""Any bytes are a model or an InvalidModel error: a header causes nothing else."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.models.checkpoints import header_of
from shardlab.errors import InvalidModel
from shardlab.planner.models.safetensors import parse_header, read_header
from shardlab.planner.tensor_group import Tensor

SIZES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
TENSORS = st.dictionaries(st.text(max_size=6), SIZES, max_size=4)
# values that stand where another belongs
STRANGE = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 2**70),
        st.floats(),
        st.text(max_size=4),
        st.sampled_from(["BF16", "F4", "F64", "__metadata__"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def tried(call, *arguments):
    try:
        return call(*arguments), None
    except InvalidModel as error:
        return None, error


def outcome(header, data_bytes):
    """Return the tensors or None; whatever else comes out fails the test."""
    actual, error = tried(parse_header, header, data_bytes, "m.safetensors")
    if error is not None:
        assert error.where.startswith("m.safetensors, ")
        assert error.what
        assert error.fix
        return None
    assert all(isinstance(item, Tensor) for item in actual)
    # what is let through is consistent: every byte of the data belongs to one tensor
    assert 8 * data_bytes == sum(item.dtype.bits * _n_elements(item.shape) for item in actual)
    assert len({item.path for item in actual}) == len(actual)
    return actual


def _n_elements(shape):
    n = 1
    for size in shape:
        assert type(size) is int
        assert size >= 0
        n *= size
    return n


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=60))
def test_random_bytes(data):
    outcome(b"{" + data, 0)


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=60))
def test_random_files(tmp_path_factory, data):
    file = tmp_path_factory.getbasetemp() / "fuzzed.safetensors"
    file.write_bytes(data)
    actual, error = tried(read_header, file)
    assert isinstance(actual, tuple) if error is None else str(file) in error.where


@settings(deadline=None, max_examples=150)
@given(TENSORS)
def test_a_header_written_as_the_format_says(tensors):
    header, n_bytes = header_of(tensors)
    actual = outcome(json.dumps(header).encode(), n_bytes)
    if all(name.isprintable() and name != "__metadata__" for name in tensors):
        assert {item.path: item.shape for item in actual} == tensors


@settings(deadline=None, max_examples=200)
@given(TENSORS.filter(bool), st.data())
def test_a_header_with_one_thing_changed(tensors, data):
    header, n_bytes = header_of(tensors)
    name = data.draw(st.sampled_from(sorted(header)))
    folder = data.draw(st.sampled_from(["entry", "dtype", "shape", "data_offsets", "name", "size"]))
    strange = data.draw(STRANGE)
    if folder == "entry":
        header[name] = strange
    elif folder == "name":
        header[data.draw(st.text(max_size=3))] = strange
    elif folder == "size":
        n_bytes = data.draw(st.integers(0, 2**64))
    else:
        header[name][folder] = strange
    outcome(json.dumps(header).encode(), n_bytes)


@settings(deadline=None, max_examples=200)
@given(TENSORS.filter(bool), st.data())
def test_a_header_with_bytes_changed(tensors, data):
    header, n_bytes = header_of(tensors)
    text = bytearray(json.dumps(header).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(text) - 1))
        cut = data.draw(st.integers(0, 4))
        text[position : position + cut] = data.draw(
            st.one_of(
                st.binary(max_size=4),
                st.sampled_from([b"{", b"}", b"[", b'"', b",", b":", b"\\u", b"-", b"e9", b"NaN"]),
            )
        )
        text = text or bytearray(b"{")
    outcome(bytes(text), n_bytes)
