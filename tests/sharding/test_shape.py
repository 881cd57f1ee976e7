"""Shape: parsed from text or sizes, on the command line together with a dtype."""

from __future__ import annotations

import numpy as np
import pytest

from shardlab.errors import InvalidSize, InvalidSyntax, InvalidType
from shardlab.sharding.shape import parse_array, parse_shape


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("4096x16384:bf16", (4096, 16384), "bfloat16"),
        ("8×6 : f32", (8, 6), "float32"),
        ("8*6", (8, 6), "float32"),
        ("8,6:int4", (8, 6), "int4"),
        ("(8, 6)", (8, 6), "float32"),
        ("(8,):s8", (8,), "int8"),
        ("1_000x2", (1000, 2), "float32"),
        ("bf16[8,6]", (8, 6), "bfloat16"),
        ("f32[]", (), "float32"),
        ("():f32", (), "float32"),
        ("7", (7,), "float32"),
        ("0x8", (0, 8), "float32"),
        ("key<fry>[8]", (8,), "key<fry>"),
    ],
)
def test_array_text_gives_shape_and_dtype(text, shape, dtype):
    parsed_shape, kind = parse_array(text)
    assert (parsed_shape, kind.name) == (shape, dtype)


@pytest.mark.parametrize("shape", [(8, 6), [8, 6], "8x6", np.zeros((8, 6)).shape, np.array([8, 6])])
def test_a_shape_is_text_or_any_sizes(shape):
    assert parse_shape(shape) == (8, 6)


def test_one_number_is_a_shape_of_one_dimension():
    assert parse_shape(8) == parse_shape(np.int64(8)) == (8,)


@pytest.mark.parametrize(
    ("text", "marks", "what"),
    [
        ("8y6", " ^^", "'x' or ',' was expected here."),
        ("8x", "  ^", "A size was expected here."),
        ("8xx6", "  ^^", "A size was expected here."),
        ("x8", "^^", "A size was expected here."),
        ("", "^", "A size was expected here."),
        ("(8,6", "    ^", "')' was expected here."),
        ("8.5", " ^^", "'x' or ',' was expected here."),
    ],
)
def test_an_error_marks_the_position_in_shape_text(text, marks, what):
    with pytest.raises(InvalidSyntax) as caught:
        parse_array(text)
    assert caught.value.what == what
    assert caught.value.where == f"the shape text\n         {text}\n         {marks}"
    assert caught.value.fix.startswith("write sizes and a dtype, such as 4096x16384:bf16")


@pytest.mark.parametrize(
    ("text", "marks"), [("8x6:bf17", "    ^^^^"), ("bf17[8]", "^^^^"), ("8:", "  ^")]
)
def test_an_error_marks_an_unknown_dtype_in_array_text(text, marks):
    with pytest.raises(InvalidSyntax, match="Unknown dtype") as caught:
        parse_array(text)
    assert caught.value.where == f"the array text\n         {text}\n         {marks}"


@pytest.mark.parametrize("text", ["bf16[4096", "bf16[", "f32 [8, 6"])
def test_an_error_names_a_missing_bracket(text):
    with pytest.raises(InvalidSyntax) as caught:
        parse_array(text)
    assert caught.value.what == "']' is missing at the end."
    assert caught.value.where.splitlines()[2] == " " * (9 + len(text)) + "^"


@pytest.mark.parametrize("shape", [(8, -2), "8x-2"])
def test_a_negative_size_names_its_dimension(shape):
    # NamedSharding returns shard shapes such as (-1,); no array has them.
    with pytest.raises(InvalidSize, match=r"The size of dimension 1 is -2\.") as caught:
        parse_shape(shape)
    assert caught.value.fix == "a size of 0 or more."


@pytest.mark.parametrize("n_bits", [129, 301, 20_000])
def test_a_size_above_the_limit_is_rejected(n_bits):
    huge = 1 << (n_bits - 1)  # Python cannot print the last of them
    with pytest.raises(
        InvalidSize, match=f"dimension 0 is an integer of {n_bits:,} bits"
    ) as caught:
        parse_shape((huge, 8))
    assert caught.value.fix == "a size below 2**128."
    assert caught.value.where.endswith(", 8)")


@pytest.mark.parametrize("shape", [3.5, None, object()])
def test_an_object_that_is_no_shape_is_rejected(shape):
    with pytest.raises(InvalidType, match="is not a shape"):
        parse_shape(shape)


def test_sizes_are_integers():
    # NamedSharding.shard_shape accepts 8.0; no array does.
    with pytest.raises(InvalidType, match=r"The size of dimension 0 is 8\.0, a float"):
        parse_shape((8.0, 6))
